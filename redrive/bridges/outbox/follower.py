"""Rows follow their runs: from Redrive's records, and from Temporal where these are silent for long."""

import asyncio
import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from redrive import Redrive
from redrive.bridges.outbox.fates import Fate, ended, fate_of
from redrive.bridges.outbox.recent import FollowedRow, RecentStarts
from redrive.contracts import ERROR_TEXT_LIMIT
from redrive.errors import RedriveError, RunCanceled, RunFailed, RunNotFound
from redrive.logs import get_logger
from redrive.outbox.rows import Outbox, OutboxEntry
from redrive.postgres.database import Database
from redrive.postgres.values import clean, json_text
from redrive.redaction.redactor import Redactor
from redrive.store.run_fates import fates_of

BATCH: Final = 500
# How often Temporal is asked which of the runs without a record are open, and of how many: their ends may be ones that
# no worker has recorded. A listed run costs the server 0.6 ms and a described one 2.3 ms, and starts wait for both.
_ASKED_EVERY: Final = 1.0
_LISTED: Final = 50
# Of those that are not listed as open.
_DESCRIBED: Final = 10
# A run that Temporal does not know is given up only after this long.
_GONE: Final = timedelta(minutes=1)
_FOLLOWED: Final = "event_id, ordering_key, status, cycle, tenant, run_id, failed_step, started_at"
# Between passes, in seconds. Looking takes at most a tenth of the time: where very many runs are under way, rows learn
# of their outcomes later, and others are not started later.
_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0
_PAUSE_FACTOR: Final = 9

log = get_logger(__name__)


class Follower:
    """Keep rows up with their runs."""

    def __init__(self, outbox: Outbox, redrive: Redrive, database: Database, redactor: Redactor) -> None:
        self._outbox = outbox
        self._redrive = redrive
        self._database = database
        self._redactor = redactor
        self._recent = RecentStarts()
        self._asked_at = -math.inf

    def started(self, rows: Sequence[tuple[OutboxEntry, str]]) -> None:
        """Look after rows whose runs were just started here."""
        self._recent.add([FollowedRow.just_started(row, run_id) for row, run_id in rows], time.monotonic())

    async def follow_some(self) -> float:
        """Tell rows the outcomes of their runs; return how many seconds to pause."""
        begin = time.monotonic()
        if await self._follow_some():
            return 0.0
        return min(max(_PAUSE, _PAUSE_FACTOR * (time.monotonic() - begin)), _LONGEST_PAUSE)

    async def _follow_some(self) -> bool:
        """Tell rows the outcomes of their runs; return whether more of them may be known already."""
        recent = self._recent.due(time.monotonic())
        due = await self._due()
        if not recent and not due:
            return False
        known = await fates_of(await self._database.pool(), [row.run for row in (*recent, *due)])
        told = [
            (row, fate)
            for row in (*recent, *due)
            if (found := known.get(row.run.run_id)) and (fate := fate_of(found)) is not None
        ]
        told += await self._silent([row for row in due if row.run.run_id not in known])
        news = [(row, fate) for row, fate in told if row.is_news(fate)]
        await self._put(news)
        self._recent.forget(row for row, _ in news)
        return len(due) == BATCH and bool(news)

    async def _due(self) -> list[FollowedRow]:
        pool = await self._outbox.database.pool()
        query = f"SELECT {_FOLLOWED} FROM {self._outbox.schema}.outbox_due($1)"  # noqa: S608
        return [FollowedRow.read(record) for record in await pool.fetch(query, BATCH)]

    async def _silent(self, rows: Sequence[FollowedRow]) -> list[tuple[FollowedRow, Fate]]:
        """Return which of the runs without a record have ended."""
        if not rows or time.monotonic() - self._asked_at < _ASKED_EVERY:
            return []
        self._asked_at, listed = time.monotonic(), rows[:_LISTED]
        try:
            still_open = await self._redrive.open_among([row.run.run_id for row in listed])
        except RedriveError as error:
            log.debug("outbox.not_followed", count=len(listed), error=str(error))
            return []
        asked = [row for row in listed if row.run.run_id not in still_open][:_DESCRIBED]
        answers = await asyncio.gather(*map(self._ask_temporal, asked))
        return [(row, fate) for row, fate in zip(asked, answers, strict=True) if fate is not None]

    async def _ask_temporal(self, row: FollowedRow) -> Fate | None:
        """Return how a run ended that has no record; None if it is open, or Temporal does not tell."""
        run_id = row.run.run_id
        try:
            if await self._redrive.is_open(run_id):
                return None
            await self._redrive.result(run_id)
        except (RunFailed, RunCanceled) as error:
            return ended(run_id, clean(self._redactor.beginning(str(error), ERROR_TEXT_LIMIT)))
        except RunNotFound:
            is_gone = datetime.now(UTC) - (row.started_at or datetime.now(UTC)) > _GONE
            return ended(run_id, f"run {run_id} is known neither to Temporal nor to the records") if is_gone else None
        except RedriveError as error:
            log.debug("outbox.not_followed", run_id=run_id, error=str(error))
            return None
        return ended(run_id, None)

    async def _put(self, told: Sequence[tuple[FollowedRow, Fate]]) -> None:
        """Change the rows. Those with an ordering key one by one: each takes a lock that producers wait for."""
        statement = f"SELECT {self._outbox.schema}.outbox_follow($1, $2)"
        pool = await self._outbox.database.pool()
        facts = sorted((row.event_id, json_text(fate)) for row, fate in told if row.ordering_key is None)
        if facts:
            await pool.executemany(statement, facts)
        for row, fate in told:
            if row.ordering_key is not None:
                await pool.execute(statement, row.event_id, json_text(fate))
