"""Reading dead letters: lists, and one with its history. Without a tenant: of all tenants."""

from typing import Any, Final

import asyncpg
from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json

from redrive.dead_letters import LetterStatus
from redrive.errors import Category
from redrive.moments import Moment
from redrive.postgres.paging import COUNTED, Page, Place, Query, Total, check_limit, read_cursor, write_cursor
from redrive.postgres.tenancy import Connection, Pool, reading
from redrive.postgres.text import clean
from redrive.store.dead_letters.models import AuditEntry, LetterRecord, LetterRow

MESSAGE_SHOWN: Final = 300
# How many rows one page of a text search reads.
SEARCH_DEPTH: Final = 20_000

_JSON_COLUMNS: Final = frozenset({"attempts", "failure_history", "payload", "config", "before", "after"})
OPEN: Final = "status IN ('pending', 'replaying')"
_NEWEST: Final = "ORDER BY last_failed_at DESC, id DESC"
_SEARCHED: Final = ("message", "run_id", "correlation_id", "idempotency_key")
_COLUMNS: Final = f"""
    id, tenant, run_id, step, module, pipeline, status, category, error_type, left(message, {MESSAGE_SHOWN}) AS message,
    jsonb_array_length(attempts) AS attempt_count, cycle, first_failed_at, last_failed_at, fingerprint, correlation_id,
    idempotency_key, replay_count, blocked_by, orphaned, version, updated_at
"""
_EXACT: Final = "exact"
_CONTAINS: Final = "contains"


class LetterFilter(BaseModel):
    """Which dead letters. `tenant` None means all; `since` and `until` are about the last failure.

    `text` is a run id, a correlation id or an idempotency key; if no dead letter has it, a part of the message or of
    one of these.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tenant: str | None = None
    status: LetterStatus | None = None
    pipeline: str | None = None
    module: str | None = None
    step: str | None = None
    category: Category | None = None
    fingerprint: str | None = None
    since: Moment | None = None
    until: Moment | None = None
    text: str | None = None


async def list_letters(pool: Pool, chosen: LetterFilter, limit: int = 50, cursor: str | None = None) -> Page[LetterRow]:
    """Return the newest matching dead letters, after the cursor of the previous page."""
    check_limit(limit)
    place = read_cursor(cursor, chosen)
    if chosen.text is not None and (place is None or place.kind == _EXACT):
        async with reading(pool, chosen.tenant) as connection:
            page = await _page(connection, chosen, limit, place, kind=_EXACT)
        if page.rows or place:
            return page
    async with reading(pool, chosen.tenant, in_order=True) as connection:
        read = _page if chosen.text is None else _search
        return await read(connection, chosen, limit, place)


async def _page(
    connection: Connection, chosen: LetterFilter, limit: int, place: Place | None, kind: str = ""
) -> Page[LetterRow]:
    query = conditions(chosen, place)
    if kind == _EXACT and chosen.text is not None:
        text = query.add(clean(chosen.text))
        query.where(f"(run_id = {text} OR correlation_id = {text} OR idempotency_key = {text} OR id = {text})")
    records = await connection.fetch(_select(chosen, query, limit + 1), *query.parameters)
    return _cut(chosen, records, limit, kind)


async def _search(connection: Connection, chosen: LetterFilter, limit: int, place: Place | None) -> Page[LetterRow]:
    """Search for the text in the next rows. If it is rare, the page ends after a fixed number of rows."""
    query = conditions(chosen, place)
    pattern = query.add(f"%{_escaped(clean(chosen.text or ''))}%")
    fits = " OR ".join(f"{column} ILIKE {pattern}" for column in _SEARCHED)
    looked = deep(chosen, query, f"id, last_failed_at, ({fits}) IS TRUE AS fits", SEARCH_DEPTH)
    most = query.add(limit + 1)
    records = await connection.fetch(
        f"""
        WITH looked AS MATERIALIZED ({looked}),
        found AS (SELECT id FROM looked WHERE fits ORDER BY last_failed_at DESC, id DESC LIMIT {most})
        SELECT {_COLUMNS} FROM dead_letters WHERE id IN (SELECT id FROM found) {_NEWEST}
        """,  # noqa: S608
        *query.parameters,
    )
    page = _cut(chosen, records, limit, _CONTAINS)
    if page.cursor:
        return page
    end = await _place_after(connection, chosen, place, SEARCH_DEPTH)
    return Page(page.rows, write_cursor(end, chosen) if end else None)


async def _place_after(connection: Connection, chosen: LetterFilter, place: Place | None, count: int) -> Place | None:
    query = conditions(chosen, place)
    looked = deep(chosen, query, "last_failed_at, id", count)
    row = await connection.fetchrow(
        f"SELECT * FROM ({looked}) AS looked {_NEWEST} OFFSET {query.add(count - 1)}",  # noqa: S608
        *query.parameters,
    )
    return Place(row["last_failed_at"], row["id"], _CONTAINS) if row else None


def conditions(chosen: LetterFilter, place: Place | None = None) -> Query:
    """Return the conditions of the list after this position. The tenant is added where it is read."""
    query = Query()
    # A status is a literal, not a parameter: the planner must see that the index of open ones applies.
    if chosen.status is not None:
        query.where(f"status = '{chosen.status.value}'")
    for column in ("pipeline", "module", "step", "category", "fingerprint"):
        value = getattr(chosen, column)
        if value is not None:
            query.where(f"{column} = {{}}", clean(str(value)))
    if chosen.since is not None:
        query.where("last_failed_at >= {}", chosen.since)
    if chosen.until is not None:
        query.where("last_failed_at < {}", chosen.until)
    if place is not None:
        query.where("(last_failed_at, id) < ({}, {})", place.at, place.id)
    return query


def _select(chosen: LetterFilter, query: Query, limit: int) -> str:
    """Return the SQL of a page. For all tenants: of each by its own index, whatever the filter, then of these."""
    if chosen.tenant is not None:
        return deep(chosen, query, _COLUMNS, limit)
    most = query.add(limit)
    return f"""
        SELECT newest.* FROM (SELECT DISTINCT tenant FROM dead_letter_counts) AS each CROSS JOIN LATERAL (
            SELECT {_COLUMNS} FROM dead_letters WHERE dead_letters.tenant = each.tenant AND {query.sql}
            {_NEWEST} LIMIT {most}
        ) AS newest {_NEWEST} LIMIT {most}
    """  # noqa: S608


def deep(chosen: LetterFilter, query: Query, columns: str, limit: int) -> str:
    """Return the SQL for many of the newest matching dead letters."""
    of_tenant(query, chosen.tenant)
    return f"SELECT {columns} FROM dead_letters WHERE {query.sql} {_NEWEST} LIMIT {query.add(limit)}"  # noqa: S608


def of_tenant(query: Query, tenant: str | None) -> None:
    """Restrict to a tenant; or to all, in the form that the indexes for that expect."""
    if tenant is None:
        query.where("version > 0")
    else:
        query.where("tenant = {}", tenant)


def _cut(chosen: LetterFilter, records: list[asyncpg.Record], limit: int, kind: str) -> Page[LetterRow]:
    rows = [LetterRow.model_validate(dict(record)) for record in records[:limit]]
    if len(records) <= limit:
        return Page(rows, None)
    return Page(rows, write_cursor(Place(rows[-1].last_failed_at, rows[-1].id, kind), chosen))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


async def get_letter(pool: Pool, tenant: str | None, letter_id: str) -> LetterRecord | None:
    """Return the whole record, or None."""
    async with reading(pool, tenant) as connection:
        record = await connection.fetchrow(
            "SELECT *, jsonb_array_length(attempts) AS attempt_count FROM dead_letters WHERE id = $1", clean(letter_id)
        )
    return LetterRecord.model_validate(_values(record)) if record else None


async def audit_trail(pool: Pool, tenant: str, letter_id: str) -> list[AuditEntry]:
    """Return the audit log of a dead letter, the oldest entry first."""
    async with reading(pool, tenant) as connection:
        records = await connection.fetch(
            """
            SELECT number, at, action, actor, reason, request_id, before, after, encode(hash, 'hex') AS hash
            FROM audit_log WHERE tenant = $1 AND dead_letter = $2 ORDER BY number
            """,
            tenant,
            clean(letter_id),
        )
    return [AuditEntry.model_validate(_values(record)) for record in records]


def _values(record: asyncpg.Record) -> dict[str, Any]:
    return {
        name: from_json(value) if name in _JSON_COLUMNS and value is not None else value
        for name, value in record.items()
    }


async def open_letters(
    pool: Pool, tenant: str | None, after_id: str | None = None, limit: int = 500
) -> list[LetterRow]:
    """Return open dead letters by id, after the given one, to walk through all of them."""
    check_limit(limit)
    query = Query()
    query.where(OPEN)
    of_tenant(query, tenant)
    if after_id is not None:
        query.where("id > {}", clean(after_id))
    async with reading(pool, tenant, in_order=True) as connection:
        records = await connection.fetch(
            f"SELECT {_COLUMNS} FROM dead_letters WHERE {query.sql} ORDER BY id LIMIT {query.add(limit)}",  # noqa: S608
            *query.parameters,
        )
    return [LetterRow.model_validate(dict(record)) for record in records]


_COUNTERS: Final = "SELECT coalesce(sum(count), 0)::bigint FROM dead_letter_counts WHERE status = ANY($1)"


async def total(pool: Pool, chosen: LetterFilter) -> Total | None:
    """Return how many dead letters match, without reading a million of them. None for a search by text."""
    if chosen.text is not None:
        return None
    async with reading(pool, chosen.tenant, in_order=True) as connection:
        if not chosen.model_dump(exclude={"tenant", "status", "text"}, exclude_none=True):
            wanted = [chosen.status] if chosen.status else list(LetterStatus)
            return Total(count=await connection.fetchval(_COUNTERS, wanted), exact=True)
        query = conditions(chosen)
        fitting = deep(chosen, query, "1", COUNTED)
        count: int = await connection.fetchval(f"SELECT count(*) FROM ({fitting}) AS fitting", *query.parameters)  # noqa: S608
    return Total(count=count, exact=count < COUNTED)
