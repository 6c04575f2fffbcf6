"""Reading dead letters: lists, and one with its history. Without a tenant: of all tenants.

The filter as SQL is the same for lists, groups, figures and bulk operations.
"""

from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Any, Final

import asyncpg
from pydantic_core import from_json

from redrive.dead_letter_records import LetterFilter, LetterId, LetterStatus
from redrive.errors import LetterNotFound
from redrive.names import label_pairs
from redrive.postgres.paging import (
    COUNTED,
    LARGEST_PAGE,
    Page,
    Place,
    Query,
    Total,
    check_limit,
    cut,
    ids_beginning,
    read_cursor,
    select,
    write_cursor,
)
from redrive.postgres.tenancy import Connection, Pool, reading
from redrive.postgres.values import clean, clean_or_none
from redrive.prefixes import SHORTEST_PREFIX, only_one
from redrive.store.dead_letters.models import AuditEntry, LetterRecord, LetterRow

OPEN: Final = "status IN ('pending', 'replaying')"
NEWEST: Final = "ORDER BY last_failed_at DESC, id DESC"
_EACH_TENANT: Final = "(SELECT DISTINCT tenant FROM dead_letter_counts) AS each"
_PREFIX: Final = "dead-letter-"
_IDS: Final = ("run_id", "correlation_id", "idempotency_key")
# Of a long message, lists have the beginning and the end: a wrapped error names its cause last.
SHOWN_MESSAGE: Final = """
    CASE WHEN length(message) > 300 THEN left(message, 199) || '…' || right(message, 100) ELSE message END AS message
"""
# How many rows one page of a text search reads.
SEARCH_DEPTH: Final = 20_000
_JSON_COLUMNS: Final = frozenset({"attempts", "failure_history", "payload", "config", "labels", "before", "after"})
_COLUMNS: Final = f"""
    id, tenant, run_id, step, module, pipeline, status, category, error_type, {SHOWN_MESSAGE},
    jsonb_array_length(attempts) AS attempt_count, cycle, first_failed_at, last_failed_at, fingerprint, correlation_id,
    idempotency_key, replay_count, blocked_by, orphaned, version, updated_at
"""
_LABELS: Final = """(
    SELECT coalesce(jsonb_object_agg(name, value), '{}') FROM run_labels WHERE run_labels.run_id = dead_letters.run_id
) AS labels"""
# The rows that have a text, among those that one page of a search reads.
_SEARCH: Final = """
    WITH looked AS MATERIALIZED ({looked}), found AS (SELECT id FROM looked WHERE fits {newest} LIMIT {most})
    SELECT {columns} FROM dead_letters WHERE id IN (SELECT id FROM found) {newest}
"""


class Match(StrEnum):
    """What a text is: a whole id or key, or a part of the message or of one of these."""

    EXACT = "exact"
    CONTAINS = "contains"


def reading_letters(
    pool: Pool, chosen: LetterFilter, match: Match | None = None
) -> AbstractAsyncContextManager[Connection]:
    """Open a transaction that reads in the order of the list, unless an id leads to the few rows at once."""
    return reading(pool, chosen.tenant, in_order=match is not Match.EXACT and chosen.letters is None)


def conditions(chosen: LetterFilter, place: Place | None = None) -> Query:
    """Return the conditions of the list after this position, without those of the text and the tenant."""
    query = Query()
    # A status is a literal, not a parameter: the planner must see that the index of open ones applies.
    if chosen.status is not None:
        query.where(f"status = '{chosen.status.value}'")
    if chosen.open:
        query.where(OPEN)
    for column in ("pipeline", "module", "step", "category", "fingerprint"):
        query.where_given(f"{column} = {{}}", clean_or_none(getattr(chosen, column)))
    for name, value in label_pairs(chosen.label):
        own = "SELECT run_id FROM run_labels AS known WHERE known.tenant = dead_letters.tenant"
        query.where(f"run_id IN ({own} AND known.name = {{}} AND known.value = {{}})", name, value)
    query.where_given("last_failed_at >= {}", chosen.since)
    query.where_given("last_failed_at < {}", chosen.until)
    if chosen.letters is not None:
        query.where("id = ANY({}::text[])", [clean(letter) for letter in chosen.letters])
    if place is not None:
        query.where("(last_failed_at, id) < ({}, {})", place.at, place.id)
    return query


def text_condition(query: Query, text: str, match: Match) -> str:
    """Return the condition that a dead letter has this text."""
    if match is Match.EXACT:
        whole = query.add(clean(text))
        return "(" + " OR ".join(f"{column} = {whole}" for column in (*_IDS, "id")) + ")"
    # Not of the dead letter's own id, which ends with its step: the name of a step would find all that died there.
    part = query.add(f"%{_escaped(clean(text))}%")
    return "(" + " OR ".join(f"{column} ILIKE {part}" for column in ("message", *_IDS)) + ")"


async def text_match(connection: Connection, chosen: LetterFilter) -> Match | None:
    """Tell what the text is: a whole id when there is a dead letter that has it and fits. None: there is no text.

    Of whatever status: when the dead letter with the key `order-1` is closed, replaying all pending ones that fit
    `order-1` must not replay `order-10`.
    """
    if chosen.text is None:
        return None
    anyone = chosen.model_copy(update={"status": None, "open": False, "letters": None})
    query = conditions(anyone)
    query.where(text_condition(query, chosen.text, Match.EXACT))
    is_there = await connection.fetchval(newest(anyone.tenant, query, "id, last_failed_at", 1), *query.parameters)
    return Match.EXACT if is_there else Match.CONTAINS


async def fitting(connection: Connection, chosen: LetterFilter) -> Query:
    """Return all conditions of a filter."""
    match = await text_match(connection, chosen)
    query = conditions(chosen)
    if match is not None and chosen.text is not None:
        query.where(text_condition(query, chosen.text, match))
    of_tenant(query, chosen.tenant)
    return query


def newest(tenant: str | None, query: Query, columns: str, limit: int) -> str:
    """Return the SQL of a page. For all tenants: of each by its own index, then of these."""
    if tenant is not None:
        return deep(tenant, query, columns, limit)
    query.where("dead_letters.tenant = each.tenant")
    own = query.select(columns, "dead_letters", NEWEST, limit)
    return select(
        "newest.*", f"{_EACH_TENANT} CROSS JOIN LATERAL ({own}) AS newest", f"{NEWEST} LIMIT {query.add(limit)}"
    )


def deep(tenant: str | None, query: Query, columns: str, limit: int) -> str:
    """Return the SQL for many of the newest matching dead letters."""
    of_tenant(query, tenant)
    return query.select(columns, "dead_letters", NEWEST, limit)


def of_tenant(query: Query, tenant: str | None) -> None:
    """Restrict to a tenant; or to all, in the form that the indexes for that expect."""
    if tenant is None:
        query.where("version > 0")
    else:
        query.where("tenant = {}", tenant)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


async def list_letters(pool: Pool, chosen: LetterFilter, limit: int = 50, cursor: str | None = None) -> Page[LetterRow]:
    """Return the newest matching dead letters, after the cursor of the previous page."""
    check_limit(limit)
    place = read_cursor(cursor, chosen)
    match = await _match(pool, chosen, place)
    async with reading_letters(pool, chosen, match) as connection:
        if match is Match.CONTAINS:
            return await _search(connection, chosen, limit, place)
        return await _page(connection, chosen, limit, place)


async def open_siblings(pool: Pool, letter: LetterId) -> list[LetterId]:
    """Return the other open dead letters of a foreign workflow's run: they end with it."""
    chosen = LetterFilter(tenant=letter.tenant, text=letter.run_id, open=True)
    page = await list_letters(pool, chosen, LARGEST_PAGE)
    return [row.letter for row in page.rows if row.letter.execution == letter.execution and row.letter != letter]


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
        columns = f"*, jsonb_array_length(attempts) AS attempt_count, {_LABELS}"
        record = await connection.fetchrow(select(columns, "dead_letters", "WHERE id = $1"), clean(letter_id))
    return LetterRecord.model_validate(_values(record)) if record else None


async def find_letter(pool: Pool, tenant: str | None, text: str) -> LetterRecord:
    """Return the record that a text names, or raise; one of another tenant is not found.

    The text is its id, its run and step as `run-…/step`, or a beginning of these that no other dead letter has.
    """
    run_id, _, step = text.partition("/")
    whole = f"{_PREFIX}{run_id}-{step}" if step else text
    record = await get_letter(pool, tenant, whole)
    if record is not None:
        return record
    async with reading(pool, tenant) as connection:
        found = await ids_beginning(connection, "dead_letters", _beginnings(run_id))
    ending = [each for each in found if not step or each.endswith(f"-{step}")]
    of_yours = "" if tenant is None else " of yours"
    record = await get_letter(pool, tenant, only_one(text, ending, f"dead letter{of_yours}", LetterNotFound))
    if record is None:
        raise LetterNotFound(f"no dead letter{of_yours} has the id {text[:200]!r} any more")
    return record


def _beginnings(text: str) -> list[str]:
    """Return how an id may begin that somebody has typed: of the dead letter, of its run, of the run's number."""
    text = clean(text)
    # The beginning that every id has is no choice.
    if len(text.removeprefix(_PREFIX).removeprefix("run-")) < SHORTEST_PREFIX or f"{_PREFIX}run-".startswith(text):
        return []
    return [text, f"{_PREFIX}{text}", f"{_PREFIX}run-{text}"]


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
