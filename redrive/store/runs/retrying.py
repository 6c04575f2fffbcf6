"""Steps that wait for their next attempt, or are in it, as lists need them.

Temporal is the authority on retries, but cannot count them.
"""

from datetime import datetime, timedelta
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from redrive.categories import Category
from redrive.postgres.paging import COUNTED, Page, Place, Query, Total, check_limit, cut, read_cursor, select
from redrive.postgres.records import Record
from redrive.postgres.tenancy import Executor, Pool, reading, transaction
from redrive.postgres.text import clean, json_text

_COLUMNS: Final = """
    tenant, run_id, step, pipeline, cycle, attempt, max_attempts, category, error_type, error, failed_at, next_at
"""


class RetryingStep(Record):
    """A step whose last attempt failed, and another follows."""

    tenant: str
    run_id: str
    step: str
    pipeline: str
    cycle: int
    attempt: int = Field(description="the one that failed last")
    max_attempts: int
    category: Category
    error_type: str
    error: str = Field(description="the beginning of it")
    failed_at: datetime
    next_at: datetime = Field(description="when the next attempt is due")


class RetryingFilter(BaseModel):
    """Which steps. `tenant` None means all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tenant: str | None = None


async def put_retrying(database: Executor, step: RetryingStep, kept: timedelta) -> None:
    """Record that an attempt failed and another follows. It is listed until this long after that one is due."""
    given = step.model_dump() | {"expires_at": step.next_at + kept}
    await database.execute("SELECT put_retrying($1)", json_text(given))


async def clear_retrying(database: Executor, *, tenant: str, run_id: str, step: str, cycle: int, attempt: int) -> None:
    """Record that this attempt has ended the step."""
    given = {"tenant": tenant, "run_id": run_id, "step": step, "cycle": cycle, "attempt": attempt}
    await database.execute("SELECT clear_retrying($1)", json_text(given))


async def list_retrying(
    pool: Pool, chosen: RetryingFilter, limit: int = 50, cursor: str | None = None
) -> Page[RetryingStep]:
    """Return the steps whose next attempt is due first, after the cursor of the previous page."""
    check_limit(limit)
    query = _shown(chosen.tenant)
    place = read_cursor(cursor, chosen)
    if place is not None:
        run_id, _, step = place.id.rpartition(" ")
        query.where("(next_at, run_id, step) > ({}, {}, {})", place.at, clean(run_id), clean(step))
    sql = query.select(_COLUMNS, "retrying", "ORDER BY next_at, run_id, step", limit + 1)
    async with reading(pool, chosen.tenant) as connection:
        records = await connection.fetch(sql, *query.parameters)
    rows = [RetryingStep.model_validate(dict(record)) for record in records]
    return cut(rows, limit, lambda last: Place(last.next_at, f"{last.run_id} {last.step}"), chosen)


async def count_retrying(pool: Pool, tenant: str | None) -> Total:
    """Return how many steps there are, counted up to a limit."""
    query = _shown(tenant)
    sql = select("count(*)", f"({query.select('', 'retrying', limit=COUNTED)}) AS shown")
    async with reading(pool, tenant) as connection:
        count: int = await connection.fetchval(sql, *query.parameters)
    return Total(count=count, exact=count < COUNTED)


def _shown(tenant: str | None) -> Query:
    query = Query(["expires_at > now()"])
    query.where_given("tenant = {}", tenant)
    return query


async def delete_unheard(pool: Pool) -> None:
    """Delete the rows that nobody will clear any more, of all tenants."""
    async with reading(pool, None) as connection:
        tenants = await connection.fetch("SELECT DISTINCT tenant FROM retrying WHERE expires_at < now()")
    for (tenant,) in tenants:
        async with transaction(pool, tenant) as connection:
            await connection.execute("DELETE FROM retrying WHERE tenant = $1 AND expires_at < now()", tenant)
