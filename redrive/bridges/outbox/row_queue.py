"""Where a bridge looks next for rows that are due.

Rows are taken in the order of (run_after, position). Whoever looks from the beginning passes over every row that was
taken since PostgreSQL last vacuumed the table, which may be a million. So lanes look behind a place: that of the last
row that was taken, the time that a notification names, or what a search has found. The search begins at the beginning,
once in a poll interval and beside the lanes. It is for rows that nobody told of: they have become due, another bridge
has died with them, or a pooler swallows notifications.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple


class Place(NamedTuple):
    """A place in the order of rows; the rows that are meant are behind it."""

    run_after: datetime
    position: int


def place_of(seconds: str) -> Place | None:
    """Return the place that a notification names: seconds since 1970, with microseconds."""
    try:
        return Place(datetime.fromtimestamp(float(seconds), UTC), 0)
    except (ValueError, OverflowError, OSError):
        return None


class RowQueue:
    """Rows of one kind: the function that takes them, where to look next, and the turn of the lane that looks."""

    def __init__(self, function: str) -> None:
        self.function = function
        self.turn = asyncio.Lock()
        self._next: Place | None = None
        self._told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._search = asyncio.Event()

    def tell(self, place: Place | None) -> None:
        """There may be rows behind a place; without one, anywhere: they are searched for."""
        if place is None:
            self._search.set()
            return
        self._next = place if self._next is None else min(self._next, place)
        self.wake()

    def wake(self) -> None:
        """End the wait of a lane."""
        if not self._told.done():
            self._told.set_result(None)

    async def wait(self, also: Iterable[asyncio.Future[Any]] = ()) -> None:
        """Wait until there may be rows, or until one of these is done."""
        awaited: list[asyncio.Future[Any]] = [self._told, *also]
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)

    def next_place(self) -> Place | None:
        """Return the place to look behind, if there may be rows."""
        place, self._next = self._next, None
        if self._told.done():
            self._told = asyncio.get_running_loop().create_future()
        return place

    async def pause_search(self, seconds: float) -> None:
        """Wait so long, or until there may be rows anywhere."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._search.wait()
        self._search.clear()
