"""Where a bridge looks next for rows that are due.

Rows are taken in the order of (run_after, position). A look from the beginning passes over every row that was taken
since PostgreSQL last vacuumed the table, which may be a million. So a bridge goes on behind the last row that it took,
or at the time that a notification names. It looks from the beginning once in a poll interval, for rows that nobody told
it of: they have become due, or another bridge has died with them, or a pooler swallows notifications.
"""

import asyncio
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

# Looks from the beginning take at most a tenth of the time, however much there is to pass over.
_PAUSE_FACTOR: Final = 9


class Place(NamedTuple):
    """A place in the order of rows; the rows that are meant are behind it."""

    run_after: datetime
    position: int


BEGINNING: Final = Place(datetime.min.replace(tzinfo=UTC), 0)


def place_of(seconds: str) -> Place:
    """Return the place that a notification names: seconds since 1970, with microseconds."""
    try:
        return Place(datetime.fromtimestamp(float(seconds), UTC), 0)
    except (ValueError, OverflowError, OSError):
        return BEGINNING


class RowQueue:
    """Rows of one kind: the function that takes them, where to look next, and the turn of the lane that looks."""

    def __init__(self, function: str, poll_interval: timedelta) -> None:
        self.function = function
        self.turn = asyncio.Lock()
        self._poll_interval = poll_interval.total_seconds()
        self._next: Place | None = None
        self._told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._whole_look_at = time.monotonic()

    def tell(self, place: Place) -> None:
        """There may be rows behind a place."""
        self._next = place if self._next is None else min(self._next, place)
        if not self._told.done():
            self._told.set_result(None)

    async def wait(self, also: Iterable[asyncio.Future[Any]] = ()) -> None:
        """Wait until there may be rows, or until one of these is done."""
        until_whole_look = max(0.0, self._whole_look_at - time.monotonic())
        awaited: list[asyncio.Future[Any]] = [self._told, *also]
        await asyncio.wait(awaited, timeout=until_whole_look, return_when=asyncio.FIRST_COMPLETED)

    def next_place(self) -> Place | None:
        """Return the place to look behind, if there may be rows."""
        place, self._next = self._next, None
        if self._told.done():
            self._told = asyncio.get_running_loop().create_future()
        return BEGINNING if time.monotonic() >= self._whole_look_at else place

    def looked(self, place: Place, last: Place | None, took: float) -> None:
        """Note a look, and the last row that it took if it took as many as it could: there may be more."""
        if place == BEGINNING:
            self._whole_look_at = time.monotonic() + max(self._poll_interval, _PAUSE_FACTOR * took)
        if last is not None:
            self.tell(last)
