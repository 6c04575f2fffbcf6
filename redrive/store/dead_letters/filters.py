"""The filter of dead letters as SQL: the same for lists, groups, figures and bulk operations."""

from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Final

from redrive.dead_letters import LetterFilter
from redrive.postgres.paging import Place, Query, select
from redrive.postgres.tenancy import Connection, Pool, reading
from redrive.postgres.text import clean, clean_or_none

OPEN: Final = "status IN ('pending', 'replaying')"
NEWEST: Final = "ORDER BY last_failed_at DESC, id DESC"
_EACH_TENANT: Final = "(SELECT DISTINCT tenant FROM dead_letter_counts) AS each"
_IDS: Final = ("run_id", "correlation_id", "idempotency_key")


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
    for column in ("pipeline", "module", "step", "category", "fingerprint"):
        query.where_given(f"{column} = {{}}", clean_or_none(getattr(chosen, column)))
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
    anyone = chosen.model_copy(update={"status": None, "letters": None})
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
