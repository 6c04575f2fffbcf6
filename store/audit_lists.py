"""Reading the audit log, the newest first. Without a tenant: of all tenants."""

from typing import Final

from pydantic_core import from_json

from store.paging import Query, check_limit
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


async def list_audit(pool: Pool, tenant: str | None, letter_id: str | None = None, limit: int = 50) -> list[AuditLine]:
    """Return the newest lines, of one dead letter or of all."""
    check_limit(limit)
    query = Query()
    if tenant is not None:
        query.where("tenant = {}", tenant)
    if letter_id is not None:
        query.where("dead_letter = {}", clean(letter_id))
    async with reading(pool, tenant) as connection:
        records = await connection.fetch(
            f"""
            SELECT tenant, number, at, action, dead_letter, run_id, step, actor, reason, request_id, before, after,
                   encode(hash, 'hex') AS hash
            FROM audit_log WHERE {query.sql} ORDER BY at DESC, tenant, number DESC LIMIT {query.add(limit)}
            """,  # noqa: S608
            *query.parameters,
        )
    return [
        AuditLine.model_validate(
            {name: from_json(value) if name in _DOCUMENTS and value else value for name, value in record.items()}
        )
        for record in records
    ]
