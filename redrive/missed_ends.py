"""Ends of runs, and keys, that the database missed: it was down, or the worker was killed, when they were reported.

Rows and keys that say that a run is open are compared with Temporal: one list call for many of them, and others only
for those that it does not list as the row says. Rows that were restored from a backup may say where the run was then.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio.client import Client

from redrive.contracts import ClaimRequest, RunStatus
from redrive.errors import Unavailable
from redrive.idempotency.claims import Settlement, without_secrets
from redrive.idempotency.postgres_claims import claim_key, settle_key
from redrive.idempotency.starts import known_hash, outcome_of
from redrive.postgres.tenancy import Pool
from redrive.redaction.redactor import Redactor
from redrive.run_probe import describe
from redrive.store.keys import KeyRow, list_unheard
from redrive.store.runs import UnheardRun, correct_run, forget_run, list_unheard_runs
from redrive.visibility import execution_status, runs_query

AT_ONCE: Final = 200
# A run that reported just now is most probably open.
QUIET: Final = timedelta(seconds=10)
_UNKNOWN: Final = "Temporal has no such run: it was never started, or is gone"


@dataclass(frozen=True)
class MissedRun:
    """A row of an open run that Temporal says something else of; None if Temporal does not know the run.

    `problem` says why Temporal cannot read the run: then the row stays.
    """

    row: UnheardRun
    status: RunStatus | None
    closed_at: datetime | None
    problem: str | None = None


@dataclass(frozen=True)
class MissedKey:
    """A key in process whose run has ended with this status; None if Temporal does not know the run.

    `problem` says why Temporal cannot read the run: then the key stays.
    """

    row: KeyRow
    status: RunStatus | None
    problem: str | None = None


class MissedEnds:
    """Find the ends that rows and keys have missed, and write them."""

    def __init__(self, client: Client, pool: Pool, redactor: Redactor, quiet: timedelta = QUIET) -> None:
        self._client = client
        self._pool = pool
        self._redactor = redactor
        self._quiet = quiet

    async def runs(self, tenant: str | None) -> AsyncIterator[MissedRun]:
        """Find rows of runs. One that is parked by now is compared with its record, and reports by itself."""
        last = None
        while rows := await list_unheard_runs(self._pool, tenant, self._quiet, AT_ONCE, last):
            last = rows[-1]
            still_open = await self._open_runs([row.run_id for row in rows])
            for row in (row for row in rows if still_open.get(row.run_id) is not row.status):
                try:
                    description = await describe(self._client, row.run_id)
                except Unavailable as error:
                    yield MissedRun(row, None, None, str(error))
                    continue
                status = execution_status(description) if description else None
                if status not in {row.status, RunStatus.DLQ_PENDING}:
                    yield MissedRun(row, status, description.close_time if description else None)

    async def settle_run(self, missed: MissedRun) -> None:
        """Write what Temporal says. A row whose run is unknown to Temporal goes: nobody knows its end."""
        if missed.status is None:
            await forget_run(self._pool, missed.row)
        else:
            await correct_run(self._pool, missed.row, missed.status, missed.closed_at)

    async def keys(self, tenant: str | None) -> AsyncIterator[MissedKey]:
        """Find keys. One without a run may be about to start it, unless it has expired."""
        last = None
        while rows := await list_unheard(self._pool, tenant, self._quiet, AT_ONCE, last):
            last = rows[-1]
            still_open = await self._open_runs([row.run_id for row in rows])
            for row in (row for row in rows if row.run_id not in still_open):
                try:
                    description = await describe(self._client, row.run_id)
                except Unavailable as error:
                    yield MissedKey(row, None, str(error))
                    continue
                status = execution_status(description) if description else None
                if status.closed if status else row.expires_at <= datetime.now(UTC):
                    yield MissedKey(row, status)

    async def settle_key(self, missed: MissedKey) -> None:
        """Write the end of a key's run."""
        row, end = missed.row, Settlement(status=RunStatus.FAILED, error=_UNKNOWN)
        if missed.status:
            end = await self._end(row.run_id, missed.status)
        request = ClaimRequest.model_validate(row.model_dump(include=set(ClaimRequest.model_fields)))
        await settle_key(self._pool, request, end)

    async def record_key(self, request: ClaimRequest) -> None:
        """Write the row of a key whose run was started while the database was down, unless it has one by now."""
        description = await describe(self._client, request.run_id)
        if description is None:
            await claim_key(self._pool, request, free_failed=False)
            return
        # Of two callers with different requests, the run tells whose it is.
        own = request.model_copy(update={"request_hash": await known_hash(self._client, request.run_id)})
        if not execution_status(description).closed:
            await claim_key(self._pool, own, free_failed=False)
            # A run that ended before its key had a row could not write its end there.
            description = await describe(self._client, request.run_id)
        if description and (status := execution_status(description)).closed:
            await settle_key(self._pool, own, await self._end(request.run_id, status))

    async def _end(self, run_id: str, status: RunStatus) -> Settlement:
        return await without_secrets(await outcome_of(self._client, run_id, status), self._redactor)

    async def reason(self, run_id: str) -> str | None:
        """Return why a run has failed, in its own words."""
        return (await self._end(run_id, RunStatus.FAILED)).error

    async def _open_runs(self, run_ids: list[str]) -> dict[str, RunStatus]:
        """Return which of these runs Temporal lists as open, and as what."""
        query = runs_query(tenant=None, status=None, pipeline=None, run_ids=run_ids)
        listed = self._client.list_workflows(f"{query} AND ExecutionStatus = 'Running'")
        return {execution.id: execution_status(execution) async for execution in listed}
