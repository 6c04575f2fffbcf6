"""Connections for callers that cannot wait: an answer in time, or none.

A pool of the driver needs some turns of the event loop to take a connection back, and waits for an abandoned statement.
Here a connection is put back at once, and one whose statement failed is dropped.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeVar

from redrive.postgres.pool import open_session
from redrive.postgres.tenancy import Session

T = TypeVar("T")

# After a burst, all connections but one are closed after this time.
SURPLUS_LIFETIME: Final = timedelta(minutes=5)


class DeadlinePool:
    """Up to a fixed number of connections, opened on demand and kept for the next caller."""

    def __init__(self, url: str, max_size: int) -> None:
        self._url = url
        self._room = asyncio.Semaphore(max_size)
        self._idle: list[Session] = []
        self._shrinking: asyncio.TimerHandle | None = None
        self._closed = False

    async def ask(self, question: Callable[[Session], Awaitable[T]], longest: timedelta) -> T:
        """Return the answer; raise `TimeoutError` if there is none in time, and what the driver raises."""
        try:
            async with asyncio.timeout(longest.total_seconds()), self._room:
                return await self._asked(question)
        except TimeoutError:
            raise TimeoutError(f"no answer within {longest.total_seconds():g} s") from None

    async def _asked(self, question: Callable[[Session], Awaitable[T]]) -> T:
        session = await self._take()
        try:
            answer = await question(session)
        except BaseException:
            session.terminate()
            raise
        self._put(session)
        return answer

    async def _take(self) -> Session:
        """Return the most recently used connection, unless the server has closed it, or a new one."""
        while self._idle:
            session = self._idle.pop()
            if not session.is_closed():
                return session
        return await open_session(self._url)

    def _put(self, session: Session) -> None:
        if self._closed:
            session.terminate()
            return
        self._idle.append(session)
        if len(self._idle) > 1 and self._shrinking is None:
            loop = asyncio.get_running_loop()
            self._shrinking = loop.call_later(SURPLUS_LIFETIME.total_seconds(), self._shrink)

    def _shrink(self) -> None:
        self._shrinking = None
        while len(self._idle) > 1:
            self._idle.pop(0).terminate()

    def close(self) -> None:
        """Close all connections; one in use is closed once its answer has arrived."""
        self._closed = True
        if self._shrinking:
            self._shrinking.cancel()
        while self._idle:
            self._idle.pop().terminate()
