"""One process of the cluster that can be stopped, killed and started by itself, and a script that is run once."""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from redrive.errors import StackError
from redrive.starter.stack.children import Program, Supervisor

READY_TIMEOUT = timedelta(minutes=3)


class Part:
    """A program under a supervisor of its own: it comes back when it dies, unless it was stopped."""

    def __init__(self, program: Program, logs: Path) -> None:
        # A machine that is full of other work starts a program in minutes.
        self.program = replace(program, ready_timeout=max(program.ready_timeout, READY_TIMEOUT))
        self._supervisor = Supervisor(logs)

    @property
    def pid(self) -> int | None:
        """The process id, while it runs."""
        status = self._supervisor.statuses.get(self.program.name)
        return status.pid if status else None

    async def start(self) -> None:
        """Start it, and return when it is ready."""
        await self._supervisor.start(self.program)

    async def stop(self) -> None:
        """Stop it as an operator does."""
        await self._supervisor.stop()

    async def kill(self) -> None:
        """Kill it, and keep it down."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        await self.stop()

    async def restart(self, *, killed: bool = False, pause: float = 0.0) -> None:
        """Stop or kill it, wait, and start it again."""
        await (self.kill() if killed else self.stop())
        await asyncio.sleep(pause)
        async with asyncio.timeout(READY_TIMEOUT.total_seconds()):
            # As an init system does: PostgreSQL refuses to start while processes of a killed server still end.
            while not await self._has_started():  # noqa: ASYNC110
                await asyncio.sleep(1.0)

    async def _has_started(self) -> bool:
        try:
            await self.start()
        except StackError as error:
            print(f"  {self.program.title} did not start: {str(error)[-300:]}", flush=True)
            return False
        return True


async def answers(host: str, port: int) -> bool:
    """Tell whether someone listens."""
    try:
        async with asyncio.timeout(1.0):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def run_script(
    *words: str,
    environment: Mapping[str, str],
    account: tuple[int, int] | None = None,
    codes: Sequence[int] = (0,),
) -> str:
    """Run a program to its end and return its output, or raise with the end of it if the exit code is another one."""
    process = await asyncio.create_subprocess_exec(
        *words,
        env={**os.environ, **environment},
        cwd="/",
        stdout=PIPE,
        stderr=STDOUT,
        **({"user": account[0], "group": account[1], "extra_groups": []} if account else {}),  # type: ignore[arg-type]
    )
    output, _ = await process.communicate()
    text = output.decode(errors="replace")
    if process.returncode not in codes:
        raise StackError(f"{' '.join(words)} ended with {process.returncode}:\n{text[-2000:]}")
    return text
