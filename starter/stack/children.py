"""The child processes of a stack: one is started, awaited until it is ready, restarted when it dies, and stopped.

The supervisor has all of them: started in groups, each group side by side, and stopped in reverse.
"""

import asyncio
import contextlib
import os
import signal
import time
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final

from redrive.errors import StackError
from redrive.starter.stack.leash import leashed
from redrive.starter.stack.placement import Account

POLL_INTERVAL: Final = 0.05
FIRST_BACKOFF: Final = 0.2
LONGEST_BACKOFF: Final = 5.0
# A child that lived this long was healthy: its next restart is quick again.
STEADY_AFTER: Final = 10.0
LOG_LIMIT: Final = 10 * 1024 * 1024
_QUOTED_LINES: Final = 6
_QUOTED_BYTES: Final = 4096


class ChildState(StrEnum):
    """A child's state."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    STOPPED = "stopped"


@dataclass(frozen=True)
class ChildStatus:
    """The current status of a child; `note` says why it was last restarted."""

    name: str
    state: ChildState = ChildState.STOPPED
    pid: int | None = None
    restarts: int = 0
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    note: str = ""


async def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Program:
    """What a child runs. `ready` is polled until it returns true, and must not raise."""

    name: str
    title: str
    command: Sequence[str]
    ready: Callable[[], Awaitable[bool]]
    environment: Mapping[str, str] | None = None
    directory: Path | None = None
    account: Account | None = None
    prepare: Callable[[], Awaitable[None]] = _nothing
    stop_signal: signal.Signals = signal.SIGTERM
    death_signal: signal.Signals = signal.SIGKILL
    ready_timeout: timedelta = timedelta(seconds=60)
    grace: timedelta = timedelta(seconds=10)


class Child:
    """A program and the process that runs it."""

    def __init__(self, program: Program, log: Path, changed: Callable[[], None]) -> None:
        self.program = program
        self.log = log
        self.status = ChildStatus(program.name)
        self._changed = changed
        self._process: Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._log_start = 0

    async def start(self) -> None:
        """Start the program and return when it is ready; from then on it is restarted when it dies."""
        self._set(state=ChildState.STARTING)
        await self._launch()
        self._keeper = asyncio.create_task(self._keep(), name=f"keep {self.program.name}")

    async def stop(self) -> None:
        """Stop the program: ask first, kill after the grace period."""
        await self._stop_keeping()
        await self._end()
        self._set(state=ChildState.STOPPED, pid=None)

    async def restart(self, why: str) -> None:
        """Stop the program and start it again at once. What does not start is tried again until it does."""
        await self._stop_keeping()
        await self._end()
        self._set(state=ChildState.RESTARTING, pid=None, note=why)
        self._keeper = asyncio.create_task(self._keep(is_ended=True), name=f"keep {self.program.name}")

    async def _stop_keeping(self) -> None:
        if self._keeper:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
            self._keeper = None

    async def _keep(self, *, is_ended: bool = False) -> None:
        backoff = FIRST_BACKOFF
        why = await self._relaunch() if is_ended else None
        while True:
            while why:
                self._set(state=ChildState.RESTARTING, pid=None, restarts=self.status.restarts + 1, note=why)
                await asyncio.sleep(backoff)
                backoff = min(LONGEST_BACKOFF, backoff * 2)
                why = await self._relaunch()
            ready_at = time.monotonic()
            code = await self._process.wait() if self._process else 0
            if time.monotonic() - ready_at > STEADY_AFTER:
                backoff = FIRST_BACKOFF
            why = f"{self.program.title} ended ({_ending(code)})"

    async def _relaunch(self) -> str | None:
        """Start the program again, and return why that failed, if it did."""
        try:
            await self._launch()
        except StackError as error:
            return str(error)
        return None

    async def _launch(self) -> None:
        try:
            await self.program.prepare()
            await self._spawn()
            await self._until_ready()
        except OSError as error:
            await self._end()
            raise StackError(f"{self.program.title} cannot be started: {error}") from error
        except BaseException:
            await self._end()
            raise
        self._set(state=ChildState.READY)

    async def _spawn(self) -> None:
        if self.log.exists() and self.log.stat().st_size > LOG_LIMIT:
            self.log.replace(self.log.with_suffix(".log.1"))
        program = self.program
        with self.log.open("ab") as output:
            self._log_start = output.tell()
            self._process = await asyncio.create_subprocess_exec(
                *leashed(
                    program.command,
                    uid_gid=program.account and (program.account.uid, program.account.gid),
                    death_signal=program.death_signal,
                ),
                stdin=DEVNULL,
                stdout=output,
                stderr=STDOUT,
                env=program.environment,
                cwd=program.directory,
                # A separate session: Ctrl-C reaches only us, and we stop the children in order.
                start_new_session=True,
            )
        self._set(pid=self._process.pid)

    async def _until_ready(self) -> None:
        deadline = time.monotonic() + self.program.ready_timeout.total_seconds()
        while not await self.program.ready() or self._exit_code is not None:
            if self._exit_code is not None:
                raise StackError(
                    f"{self.program.title} ended at its start ({_ending(self._exit_code)}).{self._quote()}"
                )
            if time.monotonic() > deadline:
                ready_timeout = self.program.ready_timeout.total_seconds()
                raise StackError(f"{self.program.title} was not ready after {ready_timeout:g} s.{self._quote()}")
            await asyncio.sleep(POLL_INTERVAL)

    @property
    def _exit_code(self) -> int | None:
        return self._process.returncode if self._process else None

    async def _end(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        try:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(self.program.stop_signal)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.program.grace.total_seconds()):
                    await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    def _quote(self) -> str:
        """Quote the end of the program's output since its start."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, end - _QUOTED_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()[-_QUOTED_LINES:]
            if lines:
                return f" The last lines of {self.log}:\n" + "\n".join(f"  {line}" for line in lines)
        return f" Its log is {self.log}"

    def _set(self, **changes: object) -> None:
        if changes.get("state", self.status.state) != self.status.state:
            changes["since"] = datetime.now(UTC)
        self.status = replace(self.status, **changes)  # type: ignore[arg-type]  # keys are those of ChildStatus
        self._changed()


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


class Supervisor:
    """Keep programs running. `on_change` is called whenever a child's status has changed."""

    def __init__(self, logs: Path, on_change: Callable[[], None] | None = None) -> None:
        self._logs = logs
        self._on_change = on_change
        self._groups: list[list[Child]] = []
        self._change = asyncio.Event()

    @property
    def statuses(self) -> dict[str, ChildStatus]:
        """The children by name, in the order in which they were started."""
        return {child.program.name: child.status for group in self._groups for child in group}

    async def start(self, *programs: Program) -> None:
        """Start programs side by side and return when all are ready; raise the first `StackError` otherwise.

        What was started before a failure keeps running until `stop`.
        """
        group = [Child(program, self._logs / f"{program.name}.log", self._changed) for program in programs]
        self._groups.append(group)
        try:
            async with asyncio.TaskGroup() as tasks:
                for child in group:
                    tasks.create_task(child.start())
        except ExceptionGroup as failures:
            expected = failures.subgroup(StackError)
            raise (expected or failures).exceptions[0] from None

    async def stop(self) -> None:
        """Stop all children, the last group first, the members of a group side by side."""
        while self._groups:
            await asyncio.gather(*(child.stop() for child in self._groups[-1]))
            self._groups.pop()

    async def restart(self, why: str, *names: str) -> None:
        """Restart some children, side by side."""
        chosen = [child for group in self._groups for child in group if child.program.name in names]
        await asyncio.gather(*(child.restart(why) for child in chosen))

    async def wait_changed(self) -> None:
        """Wait until the status of any child changes."""
        await self._change.wait()

    def _changed(self) -> None:
        self._change.set()
        self._change = asyncio.Event()
        if self._on_change:
            self._on_change()
