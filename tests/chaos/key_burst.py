"""Many starts with one key from several processes at once, some of which are killed on the way."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.chaos.key_caller import Caller, CallerConfig

PATIENCE = 90.0


@dataclass
class Burst:
    """Callers with one key, and what they were answered."""

    callers: Sequence[Caller]

    @classmethod
    def of(cls, config: CallerConfig, *, callers: int, killed: int) -> "Burst":
        """Make callers, the first of which are killed in the middle of their starts."""
        middle = config.starts // 2
        return cls([Caller(config, killed_after=middle if number < killed else None) for number in range(callers)])

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Burst"]:
        """Let them call; the block may make trouble meanwhile, and ends when all callers have."""
        calling = [asyncio.create_task(caller.run()) for caller in self.callers]
        try:
            yield self
            await asyncio.gather(*calling)
        finally:
            for task in calling:
                task.cancel()
            await asyncio.gather(*calling, return_exceptions=True)

    async def until_ready(self) -> None:
        """Wait until all callers are connected."""
        async with asyncio.timeout(PATIENCE):
            while not all(caller.is_ready or caller.is_over for caller in self.callers):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def until_heard(self, count: int) -> None:
        """Wait until so many starts were answered or have failed, or all callers have ended."""
        async with asyncio.timeout(PATIENCE):
            while self.heard < count and not all(caller.is_over for caller in self.callers):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    @property
    def heard(self) -> int:
        """How many starts were answered or have failed."""
        return self.answered + len(self.errors)

    @property
    def answered(self) -> int:
        """How many starts were answered."""
        return sum(len(caller.answers) for caller in self.callers)

    @property
    def run_ids(self) -> set[str]:
        """All run ids that any caller was told."""
        return {answer["run_id"] for caller in self.callers for answer in caller.answers}

    @property
    def fresh(self) -> int:
        """How many callers were told that theirs was the first start."""
        return sum(not answer["is_cached"] for caller in self.callers for answer in caller.answers)

    @property
    def errors(self) -> list[str]:
        """The codes of the errors after which callers tried again."""
        return [code for caller in self.callers for code in caller.errors]

    def violations(self, run_id: str, executions: set[str]) -> list[str]:
        """Say what is wrong, if anything is: the answers, and the workflows that the step was called in."""
        found = []
        if self.run_ids != {run_id}:
            found.append(f"run ids {sorted(self.run_ids)}, not only {run_id}")
        if self.fresh > 1:
            found.append(f"{self.fresh} callers were the first")
        if len(executions) != 1:
            found.append(f"{len(executions)} workflows")
        short = [len(each.answers) for each in self.callers if each.killed_after is None and not each.is_answered]
        return found + [f"a caller had {count} answers only" for count in short]
