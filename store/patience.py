"""Asking a database that may be away: quick, or not at all."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Final, TypeVar

from store.database import DATABASE_ERRORS, Database
from store.tenancy import Pool

T = TypeVar("T")

# After a failure, so long nobody asks; then one tries, and the others go on without.
PAUSE: Final = timedelta(seconds=5)


class Patience:
    """Ask a database for so long at the most, and after a failure not at all for a while."""

    def __init__(self, database: Database, longest: timedelta) -> None:
        self._database = database
        self._longest = longest
        self._asked_again_at = 0.0

    async def ask(self, question: Callable[[Pool], Awaitable[T]], tell: Callable[[Exception], None]) -> T | None:
        """Return the answer; None when there was none, which `tell` hears of, or when it was not asked for."""
        now = time.monotonic()
        if now < self._asked_again_at:
            return None
        if self._asked_again_at:
            # This one tries; the others do not wait with it.
            self._asked_again_at = now + PAUSE.total_seconds()
        try:
            answer = await _in_time(self._ask(question), self._longest)
        except DATABASE_ERRORS as error:
            self._asked_again_at = time.monotonic() + PAUSE.total_seconds()
            tell(error)
            return None
        self._asked_again_at = 0.0
        return answer

    async def _ask(self, question: Callable[[Pool], Awaitable[T]]) -> T:
        return await question(await self._database.pool())


async def _in_time(work: Coroutine[None, None, T], longest: timedelta) -> T:
    """Return what the work returns, or raise TimeoutError at once: not when the driver is done with giving up."""
    task = asyncio.create_task(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=longest.total_seconds())
    finally:
        if not task.done():
            task.cancel()
            task.add_done_callback(_forget)
    if not done:
        raise TimeoutError(f"no answer within {longest.total_seconds():g} s")
    return task.result()


def _forget(task: asyncio.Task[T]) -> None:
    """Take note of how a task ended that nobody waits for."""
    if not task.cancelled():
        task.exception()
