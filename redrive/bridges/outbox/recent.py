"""The rows that this process has started lately, and when to look at each again. Pure.

Most runs end within seconds. Until then their rows are looked after from memory: asking again costs a read and no
write. What is forgotten here, by a crash or because it takes long, the outbox itself has at hand (`check_at`).
"""

import heapq
from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

import asyncpg

from redrive.bridges.outbox.fates import Fate
from redrive.outbox.rows import OutboxEntry, OutboxStatus
from redrive.store.run_fates import Followed

_FIRST_LOOK: Final = 0.25
# As outbox_started() has it: from then on the row is due for any bridge.
_KEPT: Final = 10.0
_MOST: Final = 20_000


class FollowedRow(NamedTuple):
    """What it takes to follow a row: all but its payload, which may be large."""

    event_id: UUID
    ordering_key: str | None
    status: OutboxStatus
    cycle: int
    run: Followed
    started_at: datetime | None

    @classmethod
    def just_started(cls, row: OutboxEntry, run_id: str) -> "FollowedRow":
        """Return what is needed of a row whose run has just been started."""
        run = Followed(row.tenant, run_id, row.failed_step)
        return cls(row.event_id, row.ordering_key, OutboxStatus.IN_FLIGHT, row.cycle, run, row.started_at)

    @classmethod
    def read(cls, record: asyncpg.Record) -> "FollowedRow":
        """Return what is needed of a row, from its columns."""
        run = Followed(record["tenant"], record["run_id"] or "", record["failed_step"])
        given = (record["event_id"], record["ordering_key"], OutboxStatus(record["status"]), record["cycle"])
        return cls(*given, run, record["started_at"])

    def is_news(self, fate: Fate) -> bool:
        """Tell whether a run's fate changes the row; outbox_follow() decides."""
        if fate["status"] is OutboxStatus.IN_FLIGHT:
            return self.status is not OutboxStatus.IN_FLIGHT
        return bool(fate.get("ended")) or fate["status"] is not OutboxStatus.FAILED or (fate["cycle"] or 0) > self.cycle


class RecentStarts:
    """Rows by the time of their next look: after a quarter of the time that their runs have taken so far."""

    def __init__(self) -> None:
        self._rows: dict[UUID, FollowedRow] = {}
        self._looks: list[tuple[float, float, UUID]] = []

    def add(self, rows: Iterable[FollowedRow], now: float) -> None:
        """Look after these from now on, as far as there is room."""
        for row in rows:
            if len(self._rows) < _MOST:
                self._rows[row.event_id] = row
                heapq.heappush(self._looks, (now + _FIRST_LOOK, now, row.event_id))

    def due(self, now: float) -> list[FollowedRow]:
        """Return those to look at now."""
        found: dict[UUID, FollowedRow] = {}
        while self._looks and self._looks[0][0] <= now:
            _, since, event_id = heapq.heappop(self._looks)
            row = self._rows.get(event_id)
            if row is None:
                continue
            found[event_id] = row
            if now - since < _KEPT:
                heapq.heappush(self._looks, (now + max(_FIRST_LOOK, (now - since) / 4), since, event_id))
            else:
                del self._rows[event_id]
        return list(found.values())

    def forget(self, rows: Iterable[FollowedRow]) -> None:
        """Look no more after rows that have news: they are over, or parked."""
        for row in rows:
            self._rows.pop(row.event_id, None)
