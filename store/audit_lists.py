"""Reading the audit log, the newest first. Without a tenant: of all tenants."""

from typing import Final

import asyncpg
from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json

from redrive.errors import InvalidInput
from store.paging import Page, Place, Query, check_limit, read_cursor, write_cursor
from store.records import AuditEntry
from store.tenancy import Pool, reading
from store.text import clean

_DOCUMENTS: Final = frozenset({"before", "after"})


class AuditLine(AuditEntry):
    """One line of the audit log, with what it is about."""

    tenant: str
    dead_letter: str | None
    run_id: str | None
    step: str | None


class AuditFilter(BaseModel):
    """Which lines. `tenant` None means all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tenant: str | None = None
    dead_letter: str | None = None


async def list_audit(pool: Pool, tenant: str | None, letter_id: str | None = None, limit: int = 50) -> list[AuditLine]:
    """Return the newest lines, of one dead letter or of all."""
    return (await audit_page(pool, AuditFilter(tenant=tenant, dead_letter=letter_id), limit)).rows


async def audit_page(pool: Pool, chosen: AuditFilter, limit: int = 50, cursor: str | None = None) -> Page[AuditLine]:
    """Return the newest lines that fit, after the cursor of the page before."""
    check_limit(limit)
    query = _query(chosen, read_cursor(cursor, chosen))
    # Within a tenant the numbers have the order of time, and an index.
    order = "at DESC, tenant DESC, number DESC" if chosen.tenant is None else "number DESC"
    async with reading(pool, chosen.tenant) as connection:
        records = await connection.fetch(
            f"""
            SELECT tenant, number, at, action, dead_letter, run_id, step, actor, reason, request_id, before, after,
                   encode(hash, 'hex') AS hash
            FROM audit_log WHERE {query.sql} ORDER BY {order} LIMIT {query.add(limit + 1)}
            """,  # noqa: S608
            *query.parameters,
        )
    rows = [_line(record) for record in records[:limit]]
    if len(records) <= limit:
        return Page(rows, None)
    return Page(rows, write_cursor(Place(rows[-1].at, f"{rows[-1].tenant} {rows[-1].number}"), chosen))


def _query(chosen: AuditFilter, place: Place | None) -> Query:
    query = Query()
    if chosen.tenant is not None:
        query.where("tenant = {}", chosen.tenant)
    if chosen.dead_letter is not None:
        query.where("dead_letter = {}", clean(chosen.dead_letter))
    if place is not None:
        tenant, _, number = place.id.rpartition(" ")
        if not number.isascii() or not number.isdigit() or len(number) > 18:
            raise InvalidInput("the cursor is not one that a list gave: start again without one")
        if chosen.tenant is not None:
            query.where("number < {}", int(number))
        else:
            query.where("(at, tenant, number) < ({}, {}, {})", place.at, clean(tenant), int(number))
    return query


def _line(record: asyncpg.Record) -> AuditLine:
    return AuditLine.model_validate(
        {name: from_json(value) if name in _DOCUMENTS and value else value for name, value in record.items()}
    )
