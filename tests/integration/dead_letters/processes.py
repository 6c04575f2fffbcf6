"""Processes that tests stop, kill and start again: PostgreSQL and workers."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil

from redrive.starter.stack.programs import worker_environment
from redrive.starter.stack.state import StackInfo
from tests.conftest import eventually
from tests.ready_programs import ROOT, Forked, start_worker


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a server and its children for the length of the block: connections hang, new ones, too."""
    server = psutil.Process(pid)
    server.suspend()
    children = server.children(recursive=True)
    try:
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.suspend()
        yield
    finally:
        for process in (*children, server):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


class WorkerProcess:
    """A real worker that can be killed."""

    def __init__(self, info: StackInfo, folder: Path, **environment: str) -> None:
        folder.mkdir(exist_ok=True)
        self._ready = folder / "ready"
        self.log = folder / "worker.log"
        self.environment = worker_environment(info, state_dir=folder, embedded_temporal=True) | {
            "REDRIVE_MODULES": "tests.integration.dead_letters.fragile",
            # Its module calls a whole URL on this machine.
            "REDRIVE_PRIVATE_ADDRESSES": "true",
            "REDRIVE_READY_FILE": str(self._ready),
            "REDRIVE_LOG_FORMAT": "json",
            "REDRIVE_LOG_LEVEL": "debug",
            "PYTHONPATH": str(ROOT),
            **environment,
        }
        self._process: Forked | None = None

    async def start(self) -> None:
        """Start it, and wait until it takes work."""
        self._ready.unlink(missing_ok=True)
        self._process = await start_worker(self.environment, self.log)

        async def ready() -> bool:
            return self._ready.exists()

        await eventually(ready, within=60)

    @property
    def is_dead(self) -> bool:
        """Whether it has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def freeze(self) -> None:
        """Stop it in the middle of what it does, as a machine that is paused does."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on from there."""
        self._send(signal.SIGCONT)

    async def kill(self) -> None:
        """End it as the kernel does when memory is short."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """End it as an operator does."""
        await self._end(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        if self._process:
            self._process.send_signal(number)

    async def _end(self, number: signal.Signals) -> None:
        self._send(number)
        if self._process:
            await self._process.wait()
            self._process = None
