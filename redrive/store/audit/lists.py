"""Lists of the audit log, the newest first. Without a tenant: of all tenants."""

from datetime import datetime
from typing import Final

import asyncpg
from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json

from redrive.errors import InvalidInput
from redrive.postgres.paging import Page, Place, Query, check_limit, cut, read_cursor
from redrive.postgres.records import Record
from redrive.postgres.tenancy import Pool, reading
from redrive.postgres.text import clean, clean_or_none
from redrive.store.dead_letters.models import AuditEntry

_COLUMNS: Final = """
    tenant, number, at, action, dead_letter, run_id, step, actor, reason, request_id, before, after,
    encode(hash, 'hex') AS hash
"""
_DOCUMENTS: Final = frozenset({"before", "after"})


class AuditLine(AuditEntry):
    """One line of the audit log, with its subject."""

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
    """Return the newest matching lines, after the cursor of the previous page."""
    check_limit(limit)
    query = _query(chosen, read_cursor(cursor, chosen))
    # Within a tenant the numbers are in order of time, and indexed.
    order = "ORDER BY at DESC, tenant DESC, number DESC" if chosen.tenant is None else "ORDER BY number DESC"
    sql = query.select(_COLUMNS, "audit_log", order, limit + 1)
    async with reading(pool, chosen.tenant) as connection:
        rows = [_line(record) for record in await connection.fetch(sql, *query.parameters)]
    return cut(rows, limit, lambda last: Place(last.at, f"{last.tenant} {last.number}"), chosen)


def _query(chosen: AuditFilter, place: Place | None) -> Query:
    query = Query()
    query.where_given("tenant = {}", chosen.tenant)
    query.where_given("dead_letter = {}", clean_or_none(chosen.dead_letter))
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


CHUNK: Final = 500
_AFTER: Final = """
    SELECT tenant, number, at, action, dead_letter, run_id, step, actor, request_id,
           coalesce(after ->> 'status', after -> 'answer' ->> 'status') AS status
    FROM audit_log WHERE tenant = $1 AND number > $2 ORDER BY number LIMIT $3
"""


class Change(Record):
    """The part of an audit log line that lists and pages need."""

    tenant: str
    number: int
    at: datetime
    action: str
    dead_letter: str | None
    run_id: str | None
    step: str | None
    actor: str
    request_id: str | None
    status: str | None

    @property
    def bulk_id(self) -> str | None:
        """The bulk operation of the line, if it has one."""
        return self.request_id if self.action.startswith("bulk_") and self.request_id else None


async def heads(pool: Pool, tenant: str | None = None) -> dict[str, int]:
    """Return the number of each tenant's last line: a few bytes each, however long the log is."""
    async with reading(pool, tenant) as connection:
        rows = await connection.fetch("SELECT tenant, number FROM audit_heads")
    return {row["tenant"]: row["number"] for row in rows}


async def changes_after(pool: Pool, tenant: str, number: int) -> list[Change]:
    """Return the next lines of a tenant after this number, the oldest first."""
    async with reading(pool, tenant) as connection:
        rows = await connection.fetch(_AFTER, tenant, number, CHUNK)
    return [Change.model_validate(dict(row)) for row in rows]
