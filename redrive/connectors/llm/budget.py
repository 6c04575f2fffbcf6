"""The tokens that one run may use, over all its steps, attempts and replays."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from redrive.categories import Category
from redrive.connectors.llm.answers import Usage
from redrive.errors import ServiceError, StepError, Terminal
from redrive.logs import get_logger
from redrive.modules import RunCounters

COUNTER: Final = "llm_tokens"
_MOST_IN_A_CALL: Final = 10**9

log = get_logger(__name__)


class OverBudget(Terminal):
    """The run has used the tokens that it may use. Nothing was sent."""

    code = "over_budget"

    def __init__(self, *, used: int, needed: int, budget: int) -> None:
        super().__init__(
            f"the run has used {used} of its {budget} tokens, and this call may need {needed}: raise the budget, "
            "ask for less, then replay",
            category=Category.TOO_LARGE,
        )
        self.used = used


@dataclass
class Spending:
    """What one call has used, once that is known."""

    usage: Usage | None = None


@dataclass(frozen=True)
class Budget:
    """A run's tokens: `Budget(ctx.counters, 200_000)`.

    What a call may need is reserved before it is made, so that a crash cannot lose count; what it did not use is given
    back. A call that was refused used nothing. One that was broken off, or whose process died, keeps its reservation:
    the provider may have charged for it.
    """

    counters: RunCounters
    tokens: int

    @asynccontextmanager
    async def spending(self, needed: int) -> AsyncIterator[Spending]:
        """Reserve tokens for a call, and give back what it did not use."""
        if await self.counters.add(COUNTER, needed, limit=self.tokens) is None:
            raise OverBudget(used=await self.counters.add(COUNTER, 0) or 0, needed=needed, budget=self.tokens)
        spending = Spending()
        try:
            yield spending
        except ServiceError as error:
            if spending.usage is None and error.status is not None:
                spending.usage = Usage()
            raise
        finally:
            if spending.usage is not None:
                used = min(max(spending.usage.total, 0), _MOST_IN_A_CALL)
                await self._give_back(needed - used)

    async def _give_back(self, tokens: int) -> None:
        try:
            await self.counters.add(COUNTER, -tokens)
        except StepError as error:
            # The answer is good, and has been paid for: the count stays too high rather than the answer lost.
            log.warning("llm.not_settled", error_type=type(error).__name__, error=str(error))
