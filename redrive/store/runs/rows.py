"""Runs, as lists need them: Temporal is the authority on a run."""

from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from redrive.contracts import RunStatus, RunSummary
from redrive.moments import Moment
from redrive.postgres.paging import Page, Place, Query, check_limit, cut, read_cursor, select
from redrive.postgres.tenancy import Pool, reading
from redrive.postgres.text import clean, clean_or_none, json_text

_COLUMNS: Final = "run_id, tenant, pipeline, status, failed_step, category, started_at, closed_at"
_ONE: Final = select(_COLUMNS, "runs", "WHERE run_id = $1")


async def put_finished(
    pool: Pool,
    *,
    run_id: str,
    tenant: str,
    pipeline: str,
    status: RunStatus,
    correlation_id: str | None,
    key: str | None,
    started_at: datetime,
    step: str | None = None,
    cycle: int | None = None,
    claim: dict[str, Any] | None = None,
) -> None:
    """Record how a run ended, in its row and in that of its key (`keys.run_claim`), in one round trip.

    With the step and the cycle that it ended with, a late attempt of that cycle after the run was parked is ignored.
    """
    given = {
        "run_id": run_id,
        "tenant": tenant,
        "pipeline": pipeline,
        "status": status,
        "correlation_id": correlation_id,
        "idempotency_key": key,
        "started_at": started_at,
        "step": step,
        "cycle": cycle,
        "claim": claim,
    }
    await pool.execute("SELECT put_run($1)", json_text(given))


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
