"""Rows follow their runs: from Redrive's records, and from Temporal where these are silent for long."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from redrive import Redrive
from redrive.bridges.outbox.fates import Fate, ended, fate_of
from redrive.contracts import ERROR_TEXT_LIMIT
from redrive.errors import RedriveError, RunCanceled, RunFailed, RunNotFound
from redrive.logs import get_logger
from redrive.outbox.rows import Outbox, OutboxEntry, call, entry_of
from redrive.postgres.database import Database
from redrive.postgres.values import clean, json_text
from redrive.redaction.redactor import Redactor
from redrive.store.run_fates import Followed, fates_of

BATCH: Final = 500
# A run that has no record for this long is asked about in Temporal: its end may be one that no worker has recorded.
_SILENT: Final = timedelta(seconds=5)
# Of those, so many in one pass: describing a run costs Temporal a read.
_ASKED_AT_ONCE: Final = 10
# A run that Temporal does not know is given up only after this long.
_GONE: Final = timedelta(minutes=1)

log = get_logger(__name__)


class Follower:
    """Keep rows up with their runs."""

    interval: Final = timedelta(milliseconds=200)

    def __init__(self, outbox: Outbox, redrive: Redrive, database: Database, redactor: Redactor) -> None:
        self._outbox = outbox
        self._redrive = redrive
        self._database = database
        self._redactor = redactor

    async def follow_some(self) -> bool:
        """Tell rows that are due the outcomes of their runs; return whether there may be more of them."""
        pool = await self._outbox.database.pool()
        rows = [entry_of(record) for record in await call(pool, self._outbox.schema, "due", BATCH)]
        if rows:
            fates = await self._fates(rows)
            await self._put([(row, fates[row.event_id]) for row in rows if row.event_id in fates])
        return len(rows) == BATCH

    async def _fates(self, rows: Sequence[OutboxEntry]) -> dict[UUID, Fate]:
        asked_about = [Followed(row.tenant, row.run_id or "", row.failed_step) for row in rows]
        known = await fates_of(await self._database.pool(), asked_about)
        fates = {
            row.event_id: fate
            for row in rows
            if (found := known.get(row.run_id or "")) and (fate := fate_of(found)) is not None
        }
        now = datetime.now(UTC)
        silent = [row for row in rows if row.run_id not in known and now - (row.started_at or now) > _SILENT]
        asked = silent[:_ASKED_AT_ONCE]
        for row, fate in zip(asked, await asyncio.gather(*map(self._ask_temporal, asked)), strict=True):
            if fate is not None:
                fates[row.event_id] = fate
        return fates

    async def _ask_temporal(self, row: OutboxEntry) -> Fate | None:
        """Return how a run ended that has no record; None if it is open, or Temporal does not tell."""
        run_id = row.run_id or ""
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

    async def _put(self, told: Sequence[tuple[OutboxEntry, Fate]]) -> None:
        """Change the rows. Those with an ordering key one by one: each takes a lock that producers wait for."""
        statement = f"SELECT {self._outbox.schema}.outbox_follow($1, $2)"
        pool = await self._outbox.database.pool()
        facts = sorted((row.event_id, json_text(fate)) for row, fate in told if row.ordering_key is None)
        if facts:
            await pool.executemany(statement, facts)
        for row, fate in told:
            if row.ordering_key is not None:
                await pool.execute(statement, row.event_id, json_text(fate))
