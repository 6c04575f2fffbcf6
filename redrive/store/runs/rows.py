"""Runs, as lists need them: Temporal is the authority on a run."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict

from redrive.contracts import RunStatus, RunSummary
from redrive.moments import Moment
from redrive.postgres.paging import Page, Place, Query, check_limit, cut, read_cursor, select
from redrive.postgres.tenancy import Executor, Pool, reading, transaction
from redrive.postgres.text import clean, clean_or_none, json_text

_COLUMNS: Final = "run_id, tenant, pipeline, status, failed_step, category, started_at, closed_at"
_ONE: Final = select(_COLUMNS, "runs", "WHERE run_id = $1")


async def put_finished(
    database: Executor,
    *,
    run_id: str,
    tenant: str,
    pipeline: str,
    status: RunStatus,
    correlation_id: str | None,
    key: str | None,
    started_at: datetime,
    claim: dict[str, Any] | None = None,
) -> None:
    """Record how a run ended, in its row and in that of its key (`keys.run_claim`), in one round trip."""
    given = {
        "run_id": run_id,
        "tenant": tenant,
        "pipeline": pipeline,
        "status": status,
        "correlation_id": correlation_id,
        "idempotency_key": key,
        "started_at": started_at,
        "claim": claim,
    }
    await database.execute("SELECT put_run($1)", json_text(given))


class UnheardRun(NamedTuple):
    """A run that its row says is under way."""

    run_id: str
    tenant: str


# A run is asked about again after as long as it has been running, at most after ten minutes.
_UNHEARD: Final = """
    SELECT run_id, tenant FROM runs
    WHERE closed_at IS NULL AND status <> 'DLQ_PENDING' AND updated_at < now() - $1::interval
        AND updated_at < now() - least(updated_at - started_at, interval '10 minutes')
    ORDER BY updated_at LIMIT $2
"""
_CLOSE: Final = """
    UPDATE runs SET status = $3, closed_at = $4, updated_at = now(),
        failed_step = CASE WHEN $3 <> 'SUCCESS' THEN failed_step END,
        category = CASE WHEN $3 <> 'SUCCESS' THEN category END
    WHERE tenant = $1 AND run_id = $2 AND closed_at IS NULL AND status <> 'DLQ_PENDING'
"""


async def list_unheard_runs(pool: Pool, quiet: timedelta, limit: int) -> list[UnheardRun]:
    """Return runs of all tenants that may have ended without a record, those longest without news first."""
    async with reading(pool, None) as connection:
        return [UnheardRun(*record) for record in await connection.fetch(_UNHEARD, quiet, limit)]


async def close_run(pool: Pool, run: UnheardRun, status: RunStatus, closed_at: datetime | None) -> None:
    """Record how a run ended, as Temporal tells."""
    async with transaction(pool, run.tenant) as connection:
        await connection.execute(_CLOSE, run.tenant, run.run_id, status.value, closed_at)


async def touch_runs(pool: Pool, runs: Sequence[UnheardRun]) -> None:
    """Record that these runs are still under way."""
    for tenant in {run.tenant for run in runs}:
        ids = [run.run_id for run in runs if run.tenant == tenant]
        async with transaction(pool, tenant) as connection:
            await connection.execute(
                "UPDATE runs SET updated_at = now() WHERE tenant = $1 AND run_id = ANY($2)", tenant, ids
            )


class RunFilter(BaseModel):
    """Which runs. `tenant` None means all; `since` and `until` are about the start."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tenant: str | None = None
    status: RunStatus | None = None
    pipeline: str | None = None
    since: Moment | None = None
    until: Moment | None = None


async def list_runs(pool: Pool, chosen: RunFilter, limit: int = 50, cursor: str | None = None) -> Page[RunSummary]:
    """Return the newest runs that have a row, after the cursor of the previous page."""
    check_limit(limit)
    query = _query(chosen, read_cursor(cursor, chosen))
    sql = query.select(_COLUMNS, "runs", "ORDER BY started_at DESC, run_id DESC", limit + 1)
    async with reading(pool, chosen.tenant, in_order=True) as connection:
        records = await connection.fetch(sql, *query.parameters)
    rows = [RunSummary.model_validate(dict(record)) for record in records]
    return cut(rows, limit, lambda last: Place(last.started_at, last.run_id), chosen)


def _query(chosen: RunFilter, place: Place | None) -> Query:
    query = Query()
    query.where_given("tenant = {}", chosen.tenant)
    query.where_given("status = {}", chosen.status)
    query.where_given("pipeline = {}", clean_or_none(chosen.pipeline))
    query.where_given("started_at >= {}", chosen.since)
    query.where_given("started_at < {}", chosen.until)
    if place is not None:
        query.where("(started_at, run_id) < ({}, {})", place.at, place.id)
    return query


async def get_run(pool: Pool, tenant: str | None, run_id: str) -> RunSummary | None:
    """Return the row of a run, even if Temporal has forgotten it."""
    async with reading(pool, tenant) as connection:
        record = await connection.fetchrow(_ONE, clean(run_id))
    return RunSummary.model_validate(dict(record)) if record else None
