"""A circuit breaker for a database that may be down: callers get a fast answer, or none."""

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeVar

from redrive.postgres.database import DATABASE_ERRORS
from redrive.postgres.deadline_pool import DeadlinePool
from redrive.postgres.tenancy import Session

T = TypeVar("T")

# After a failure, nobody asks for this long; then one caller tries, and the others go without.
PAUSE: Final = timedelta(seconds=5)


class CircuitBreaker:
    """Ask a database with a time limit, and after a failure not at all for a while."""

    def __init__(self, deadline_pool: DeadlinePool, longest: timedelta) -> None:
        self._pool = deadline_pool
        self._longest = longest
        self._asked_again_at = 0.0

    async def ask(self, question: Callable[[Session], Awaitable[T]], tell: Callable[[Exception], None]) -> T | None:
        """Return the answer; None if there was none, which is reported to `tell`, or if it was not asked for."""
        now = time.monotonic()
        if now < self._asked_again_at:
            return None
        if self._asked_again_at:
            # This caller tries; the others do not wait for it.
            self._asked_again_at = now + PAUSE.total_seconds()
        try:
            answer = await self._pool.ask(question, self._longest)
        except DATABASE_ERRORS as error:
            self._asked_again_at = time.monotonic() + PAUSE.total_seconds()
            tell(error)
            return None
        self._asked_again_at = 0.0
        return answer
