"""All children of a stack: started in groups, each group side by side, and stopped in reverse."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from redrive.errors import StackError
from redrive.starter.stack.child import Child, ChildStatus, Program


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

    async def wait_changed(self) -> None:
        """Wait until the status of any child changes."""
        await self._change.wait()

    def _changed(self) -> None:
        self._change.set()
        self._change = asyncio.Event()
        if self._on_change:
            self._on_change()
