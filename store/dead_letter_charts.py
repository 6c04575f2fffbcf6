"""Figures for drawing: how many dead letters there are by status, and how many failed in each of the last hours."""

from datetime import datetime, timedelta
from typing import Final

from redrive.dead_letters import LetterStatus
from store.dead_letter_lists import OPEN, of_tenant
from store.paging import Query
from store.records import Record
from store.tenancy import Pool, reading

HOURS: Final = 24
# An hour is counted up to here: the cost of a page does not grow with the number of rows.
HOUR_LIMIT: Final = 4000


class FailedHour(Record):
    """The dead letters that failed last in one hour. At the limit there may be more."""

    begin: datetime
    open: int
    closed: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.open + self.closed


async def status_counts(pool: Pool, tenant: str | None) -> dict[LetterStatus, int]:
    """Return how many dead letters there are, from the counters."""
    async with reading(pool, tenant) as connection:
        rows = await connection.fetch("SELECT status, sum(count)::bigint FROM dead_letter_counts GROUP BY status")
    return dict.fromkeys(LetterStatus, 0) | {LetterStatus(status): count for status, count in rows}


async def failed_hours(pool: Pool, tenant: str | None, now: datetime) -> list[FailedHour]:
    """Return the last hours, the oldest first, with the dead letters that failed in them."""
    end = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    query = Query()
    of_tenant(query, tenant)
    first, last, most = query.add(end - timedelta(hours=HOURS)), query.add(end), query.add(HOUR_LIMIT)
    within = f"{query.sql} AND last_failed_at >= begin AND last_failed_at < begin + interval '1 hour'"
    some = f"(SELECT count(*) FROM (SELECT FROM dead_letters WHERE {within} LIMIT {most}) AS counted)"  # noqa: S608
    still = f"(SELECT count(*) FROM (SELECT FROM dead_letters WHERE {within} AND {OPEN} LIMIT {most}) AS counted)"  # noqa: S608
    async with reading(pool, tenant, in_order=True) as connection:
        rows = await connection.fetch(
            f"""
            SELECT begin, {some} AS total, {still} AS open
            FROM generate_series({first}::timestamptz, {last}::timestamptz - interval '1 hour', interval '1 hour')
                AS begin
            """,  # noqa: S608
            *query.parameters,
        )
    return [FailedHour(begin=row["begin"], open=row["open"], closed=max(0, row["total"] - row["open"])) for row in rows]
