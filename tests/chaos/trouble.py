"""What goes wrong: workers and consoles that are killed and started again, PostgreSQL that stops or dies."""

import asyncio
import contextlib
import os
import random
import signal
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from redrive.starter.stack.stack import Stack
from tests.integration.dead_letters.processes import stopped
from tests.ready_programs import Forked, start_worker

ROOT = Path(__file__).parents[2]
POLL = 0.05


@dataclass
class Damage:
    """How often what was done."""

    workers_killed: int = 0
    postgres_stopped: int = 0
    postgres_killed: int = 0
    consoles_killed: int = 0


class Workers:
    """Worker processes that are started again as soon as they end, without a supervisor's patience.

    `command` runs other processes that say in the same way when they are ready: bridges.
    """

    def __init__(
        self, count: int, environment: Mapping[str, str], folder: Path, command: Sequence[str] | None = None
    ) -> None:
        self._command = command
        self._environment = dict(environment) | {"PYTHONPATH": str(ROOT), "REDRIVE_LOG_FORMAT": "json"}
        self._folder = folder
        self._names = [f"worker-{number + 1}" for number in range(count)]
        self._processes: dict[str, Process | Forked] = {}
        self._stopping = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Workers"]:
        """Run them while the block lasts; it begins when all take work."""
        keepers = [asyncio.create_task(self._keep(name)) for name in self._names]
        try:
            async with asyncio.timeout(60):
                while len(self.ready) < len(self._names):  # noqa: ASYNC110  # it happens in other processes
                    await asyncio.sleep(POLL)
            yield self
        finally:
            self._stopping = True
            for process in self._processes.values():
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await asyncio.gather(*keepers)

    @property
    def ready(self) -> list[str]:
        """Those that take work, the oldest first."""
        return self.ready_for(0.0)

    def ready_for(self, seconds: float) -> list[str]:
        """Return those that have taken work for so long at least, the oldest first."""
        files = [(file.stat().st_mtime, name) for name in self._names if (file := self._ready_file(name)).exists()]
        return [name for since, name in sorted(files) if time.time() - since >= seconds]

    def pid(self, name: str) -> int:
        """Return the process id of a worker."""
        return self._processes[name].pid

    def kill(self, name: str) -> None:
        """End one as the kernel does when memory is short."""
        self._ready_file(name).unlink(missing_ok=True)
        with contextlib.suppress(ProcessLookupError):
            self._processes[name].send_signal(signal.SIGKILL)

    def _ready_file(self, name: str) -> Path:
        return self._folder / f"{name}.ready"

    async def _keep(self, name: str) -> None:
        environment = self._environment | {"REDRIVE_READY_FILE": str(self._ready_file(name))}
        while not self._stopping:
            self._ready_file(name).unlink(missing_ok=True)
            process = self._processes[name] = await self._start(environment, self._folder / f"{name}.log")
            await process.wait()

    async def _start(self, environment: Mapping[str, str], log: Path) -> Process | Forked:
        if self._command is None:
            return await start_worker(environment, log)
        with log.open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *self._command, env=environment, cwd=ROOT, stdout=output, stderr=output
            )


@dataclass
class Trouble:
    """Hurt a stack for the length of a block: one worker a second, PostgreSQL and the console every few seconds.

    A worker lives for `worker_life` once it takes work: when a machine is too slow to start workers as fast as they are
    killed, nothing would ever be done, and the test would show nothing.
    """

    stack: Stack
    workers: Workers
    seed: int
    worker_interval: float = 1.0
    worker_life: float = 3.0
    postgres_interval: float = 8.0
    stop_time: float = 3.0
    console_interval: float = 6.0
    damage: Damage = field(default_factory=Damage)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    @contextlib.asynccontextmanager
    async def going_on(self, limit: float) -> AsyncIterator[None]:
        """Make trouble until the block ends, or for so many seconds."""
        ends = time.monotonic() + limit
        troubles = (self._kill_workers, self._hurt_postgres, self._kill_consoles)
        tasks = [asyncio.create_task(trouble(ends)) for trouble in troubles]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _kill_workers(self, ends: float) -> None:
        while time.monotonic() < ends:
            await asyncio.sleep(self.worker_interval)
            self.kill_worker(self.worker_life)

    def kill_worker(self, life: float = 0.0) -> None:
        """Kill the worker that has taken work for the longest, if one has for so long at least."""
        if ready := self.workers.ready_for(life):
            self.workers.kill(ready[0])
            self.damage.workers_killed += 1

    async def _hurt_postgres(self, ends: float) -> None:
        while time.monotonic() < ends:
            await asyncio.sleep(self._random.uniform(0.5, 1.5) * self.postgres_interval)
            await self._random.choice([self.stop_postgres, self.kill_postgres])()

    async def stop_postgres(self) -> None:
        """Let it answer nobody for a while."""
        if pid := self.stack.info.children.get("postgres"):
            self.damage.postgres_stopped += 1
            with stopped(pid):
                await asyncio.sleep(self.stop_time)

    async def kill_postgres(self) -> None:
        """Kill it; the stack starts it again."""
        self.damage.postgres_killed += self._kill_child("postgres")

    async def _kill_consoles(self, ends: float) -> None:
        while time.monotonic() < ends:
            await asyncio.sleep(self.console_interval)
            self.kill_console()

    def kill_console(self) -> None:
        """Kill the console, if there is one; the stack starts it again."""
        self.damage.consoles_killed += self._kill_child("console")

    def _kill_child(self, name: str) -> bool:
        """Kill a part of the stack, and tell whether it was there."""
        pid = self.stack.info.children.get(name)
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return True
