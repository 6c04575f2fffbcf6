"""Reading dead letters: lists, and one with its history. Without a tenant: of all tenants."""

from typing import Any, Final

import asyncpg
from pydantic_core import from_json

from redrive.dead_letters import LetterFilter, LetterStatus
from redrive.errors import LetterNotFound
from redrive.postgres.paging import (
    COUNTED,
    Page,
    Place,
    Query,
    Total,
    check_limit,
    cut,
    read_cursor,
    select,
    write_cursor,
)
from redrive.postgres.tenancy import Connection, Pool, reading
from redrive.postgres.text import clean, clean_or_none
from redrive.store.dead_letters.filters import (
    NEWEST,
    OPEN,
    Match,
    conditions,
    deep,
    newest,
    of_tenant,
    reading_letters,
    text_condition,
    text_match,
)
from redrive.store.dead_letters.models import AuditEntry, LetterRecord, LetterRow

MESSAGE_SHOWN: Final = 300
# How many rows one page of a text search reads.
SEARCH_DEPTH: Final = 20_000

_JSON_COLUMNS: Final = frozenset({"attempts", "failure_history", "payload", "config", "before", "after"})
_COLUMNS: Final = f"""
    id, tenant, run_id, step, module, pipeline, status, category, error_type, left(message, {MESSAGE_SHOWN}) AS message,
    jsonb_array_length(attempts) AS attempt_count, cycle, first_failed_at, last_failed_at, fingerprint, correlation_id,
    idempotency_key, replay_count, blocked_by, orphaned, version, updated_at
"""
# The rows that have a text, among those that one page of a search reads.
_SEARCH: Final = """
    WITH looked AS MATERIALIZED ({looked}), found AS (SELECT id FROM looked WHERE fits {newest} LIMIT {most})
    SELECT {columns} FROM dead_letters WHERE id IN (SELECT id FROM found) {newest}
"""


async def list_letters(pool: Pool, chosen: LetterFilter, limit: int = 50, cursor: str | None = None) -> Page[LetterRow]:
    """Return the newest matching dead letters, after the cursor of the previous page."""
    check_limit(limit)
    place = read_cursor(cursor, chosen)
    match = await _match(pool, chosen, place)
    async with reading_letters(pool, chosen, match) as connection:
        if match is Match.CONTAINS:
            return await _search(connection, chosen, limit, place)
        return await _page(connection, chosen, limit, place)


async def _match(pool: Pool, chosen: LetterFilter, place: Place | None) -> Match | None:
    """Tell what the text is. The pages after the first go on as that one began."""
    if chosen.text is None:
        return None
    if place is not None:
        return Match.EXACT if place.kind == Match.EXACT else Match.CONTAINS
    async with reading(pool, chosen.tenant) as connection:
        return await text_match(connection, chosen)


async def _page(connection: Connection, chosen: LetterFilter, limit: int, place: Place | None) -> Page[LetterRow]:
    """Return a page without a text, or of those that have it as a whole."""
    query = conditions(chosen, place)
    if chosen.text is not None:
        query.where(text_condition(query, chosen.text, Match.EXACT))
    records = await connection.fetch(newest(chosen.tenant, query, _COLUMNS, limit + 1), *query.parameters)
    return _cut(chosen, records, limit, "" if chosen.text is None else Match.EXACT)


async def _search(connection: Connection, chosen: LetterFilter, limit: int, place: Place | None) -> Page[LetterRow]:
    """Search for the text in the next rows. If it is rare, the page ends after a fixed number of rows."""
    query = conditions(chosen, place)
    fits = text_condition(query, chosen.text or "", Match.CONTAINS)
    looked = deep(chosen.tenant, query, f"id, last_failed_at, {fits} IS TRUE AS fits", SEARCH_DEPTH)
    records = await connection.fetch(
        _SEARCH.format(looked=looked, newest=NEWEST, most=query.add(limit + 1), columns=_COLUMNS), *query.parameters
    )
    page = _cut(chosen, records, limit, Match.CONTAINS)
    if page.cursor:
        return page
    end = await _place_after(connection, chosen, place, SEARCH_DEPTH)
    return Page(page.rows, write_cursor(end, chosen) if end else None)


async def _place_after(connection: Connection, chosen: LetterFilter, place: Place | None, count: int) -> Place | None:
    query = conditions(chosen, place)
    looked = deep(chosen.tenant, query, "last_failed_at, id", count)
    row = await connection.fetchrow(
        select("*", f"({looked}) AS looked", f"{NEWEST} OFFSET {query.add(count - 1)}"), *query.parameters
    )
    return Place(row["last_failed_at"], row["id"], Match.CONTAINS) if row else None


def _cut(chosen: LetterFilter, records: list[asyncpg.Record], limit: int, kind: str) -> Page[LetterRow]:
    rows = [LetterRow.model_validate(dict(record)) for record in records]
    return cut(rows, limit, lambda last: Place(last.last_failed_at, last.id, kind), chosen)


async def get_letter(pool: Pool, tenant: str | None, letter_id: str) -> LetterRecord | None:
    """Return the whole record, or None."""
    async with reading(pool, tenant) as connection:
        record = await connection.fetchrow(
            "SELECT *, jsonb_array_length(attempts) AS attempt_count FROM dead_letters WHERE id = $1", clean(letter_id)
        )
    return LetterRecord.model_validate(_values(record)) if record else None


async def find_letter(pool: Pool, tenant: str | None, letter_id: str) -> LetterRecord:
    """Return the whole record; one of another tenant is not found."""
    record = await get_letter(pool, tenant, letter_id)
    if record is None:
        of_yours = "" if tenant is None else " of yours"
        raise LetterNotFound(f"no dead letter{of_yours} has the id {letter_id[:200]!r}")
    return record


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
    query.where_given("id > {}", clean_or_none(after_id))
    async with reading(pool, tenant, in_order=True) as connection:
        records = await connection.fetch(
            query.select(_COLUMNS, "dead_letters", "ORDER BY id", limit), *query.parameters
        )
    return [LetterRow.model_validate(dict(record)) for record in records]


_COUNTERS: Final = "SELECT coalesce(sum(count), 0)::bigint FROM dead_letter_counts WHERE status = ANY($1)"


async def total(pool: Pool, chosen: LetterFilter) -> Total | None:
    """Return how many dead letters match, without reading a million of them. None for a search by text."""
    if chosen.text is not None:
        return None
    async with reading_letters(pool, chosen) as connection:
        if not chosen.model_dump(exclude={"tenant", "status", "text"}, exclude_none=True):
            wanted = [chosen.status] if chosen.status else list(LetterStatus)
            return Total(count=await connection.fetchval(_COUNTERS, wanted), exact=True)
        query = conditions(chosen)
        fitting = deep(chosen.tenant, query, "1", COUNTED)
        count: int = await connection.fetchval(select("count(*)", f"({fitting}) AS fitting"), *query.parameters)
    return Total(count=count, exact=count < COUNTED)
