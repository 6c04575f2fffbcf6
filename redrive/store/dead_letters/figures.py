"""Figures about dead letters: number, age and similarity. Without a tenant: of all tenants."""

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from redrive.categories import Category
from redrive.dead_letter_records import LetterFilter, LetterStatus
from redrive.errors import InvalidInput
from redrive.postgres.paging import Query, check_limit, select
from redrive.postgres.tenancy import Connection, Pool, reading
from redrive.postgres.values import Record
from redrive.store.dead_letters.lists import OPEN, SHOWN_MESSAGE, conditions, deep, of_tenant, reading_letters
from redrive.store.dead_letters.models import LetterGroup, LetterStats

# How many of the newest open dead letters are grouped.
GROUP_DEPTH: Final = 20_000
# The largest groups of similar dead letters, each with the newest one as its sample.
_GROUPS: Final = """
    SELECT alike.*, pipeline, module AS step, category, error_type, {message}
    FROM (
        SELECT tenant, fingerprint, count(*) AS count, min(first_failed_at) AS first_failed_at,
               max(last_failed_at) AS last_failed_at,
               (array_agg(id ORDER BY last_failed_at DESC, id DESC))[1] AS sample
        FROM ({newest}) AS newest GROUP BY tenant, fingerprint ORDER BY count DESC, 2 LIMIT {most}
    ) AS alike JOIN dead_letters ON id = sample ORDER BY alike.count DESC, alike.fingerprint
"""
_COUNTS: Final = "SELECT status, sum(count)::bigint AS count FROM dead_letter_counts GROUP BY status"


async def groups(pool: Pool, chosen: LetterFilter, limit: int = 20) -> list[LetterGroup]:
    """Return the largest groups of similar open dead letters, among the newest that match."""
    check_limit(limit)
    if chosen.text is not None:
        raise InvalidInput("groups cannot be searched by text: filter by fingerprint, step or category")
    async with reading_letters(pool, chosen) as connection:
        return await _groups(connection, chosen, limit)


async def _groups(connection: Connection, chosen: LetterFilter, limit: int) -> list[LetterGroup]:
    query = conditions(chosen)
    query.where(OPEN)
    newest = deep(chosen.tenant, query, "tenant, fingerprint, id, first_failed_at, last_failed_at", GROUP_DEPTH)
    records = await connection.fetch(
        _GROUPS.format(message=SHOWN_MESSAGE, newest=newest, most=query.add(limit)), *query.parameters
    )
    return [LetterGroup.model_validate(dict(record)) for record in records]


async def stats(pool: Pool, tenant: str | None = None, largest: int = 10) -> LetterStats:
    """Return the number of dead letters, the age of the oldest open one, and what the open ones are about."""
    chosen = LetterFilter(tenant=tenant)
    async with reading(pool, tenant, in_order=True) as connection:
        by_status = await _status_counts(connection)
        by_category, by_step = await _kinds(connection, chosen)
        return LetterStats(
            by_status=by_status,
            oldest_open=await _oldest(connection, tenant),
            looked_at=sum(by_category.values()),
            by_category=by_category,
            by_step=by_step,
            groups=await _groups(connection, chosen, largest),
        )


async def _kinds(connection: Connection, chosen: LetterFilter) -> tuple[dict[Category, int], dict[str, int]]:
    query = Query()
    query.where(OPEN)
    newest = deep(chosen.tenant, query, "category, step", GROUP_DEPTH)
    records = await connection.fetch(
        select(
            "category, split_part(step, '@', 1), count(*)",
            f"({newest}) AS newest",
            "GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2",
        ),
        *query.parameters,
    )
    by_category: dict[Category, int] = {}
    by_step: dict[str, int] = {}
    for category, step, count in records:
        by_category[Category(category)] = by_category.get(Category(category), 0) + count
        by_step[step] = by_step.get(step, 0) + count
    return by_category, by_step


async def _oldest(connection: Connection, tenant: str | None) -> timedelta | None:
    query = Query()
    query.where(OPEN)
    of_tenant(query, tenant)
    first: datetime | None = await connection.fetchval(
        query.select("min(first_failed_at)", "dead_letters"), *query.parameters
    )
    return datetime.now(UTC) - first if first else None


# How many of the newest dead letters tell which pipelines and steps there are.
PLACES_DEPTH: Final = 2000


async def letter_places(pool: Pool, tenant: str | None) -> list[tuple[str, str]]:
    """Return the pipelines and steps of the newest dead letters, in whatever status, by name.

    The steps of a foreign workflow have no names that others share.
    """
    query = Query()
    query.where("step = module")
    newest = deep(tenant, query, "pipeline, step", PLACES_DEPTH)
    async with reading(pool, tenant, in_order=True) as connection:
        rows = await connection.fetch(
            select("DISTINCT pipeline, step", f"({newest}) AS newest", "ORDER BY 1, 2"), *query.parameters
        )
    return [(row["pipeline"], row["step"]) for row in rows]


HOURS: Final = 24
# An hour is counted up to this limit: the cost of a page does not grow with the number of rows.
HOUR_LIMIT: Final = 4000
# Each hour with its dead letters.
_FAILED_HOURS: Final = """
    SELECT begin, (SELECT count(*) FROM (SELECT FROM dead_letters WHERE {within} LIMIT {most}) AS counted) AS total,
           (SELECT count(*) FROM (SELECT FROM dead_letters WHERE {within} AND {open} LIMIT {most}) AS counted) AS open
    FROM generate_series({first}::timestamptz, {last}::timestamptz - interval '1 hour', interval '1 hour') AS begin
"""


class FailedHour(Record):
    """The dead letters whose last failure was in one hour. At the limit there may be more."""

    begin: datetime
    open: int
    closed: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.open + self.closed


async def status_counts(pool: Pool, tenant: str | None) -> dict[LetterStatus, int]:
    """Return the number of dead letters, from the counters."""
    async with reading(pool, tenant) as connection:
        return await _status_counts(connection)


async def _status_counts(connection: Connection) -> dict[LetterStatus, int]:
    rows = await connection.fetch(_COUNTS)
    return dict.fromkeys(LetterStatus, 0) | {LetterStatus(status): count for status, count in rows}


async def failed_hours(pool: Pool, tenant: str | None, now: datetime) -> list[FailedHour]:
    """Return the last hours, the oldest first, with the dead letters that failed in them."""
    end = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    query = Query()
    of_tenant(query, tenant)
    query.where("last_failed_at >= begin AND last_failed_at < begin + interval '1 hour'")
    sql = _FAILED_HOURS.format(
        within=query.sql,
        open=OPEN,
        most=query.add(HOUR_LIMIT),
        first=query.add(end - timedelta(hours=HOURS)),
        last=query.add(end),
    )
    async with reading(pool, tenant, in_order=True) as connection:
        rows = await connection.fetch(sql, *query.parameters)
    return [FailedHour(begin=row["begin"], open=row["open"], closed=max(0, row["total"] - row["open"])) for row in rows]


_OLDEST: Final = """
    SELECT coalesce(now() - min(first_failed_at), interval '0') FROM dead_letters
    WHERE status IN ('pending', 'replaying') AND version > 0
"""
_RETRYING: Final = "SELECT count(*) FROM retrying WHERE expires_at > now()"


class Backlog(NamedTuple):
    """The dead letters by status, the age of the oldest open one, and the steps in retry."""

    letters: dict[str, int]
    oldest: timedelta
    retrying: int


async def backlog(pool: Pool) -> Backlog:
    """Return the backlog of all tenants, for gauges."""
    async with reading(pool, None) as connection:
        rows = await connection.fetch(_COUNTS)
        oldest: timedelta = await connection.fetchval(_OLDEST)
        retrying: int = await connection.fetchval(_RETRYING)
    return Backlog({row["status"]: row["count"] for row in rows}, oldest, retrying)
