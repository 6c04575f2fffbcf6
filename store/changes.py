"""What changed, from the audit log: every change of a dead letter writes a line there, numbered without gaps."""

from datetime import datetime
from typing import Final

from store.records import Record
from store.tenancy import Pool, reading

CHUNK: Final = 500
_AFTER: Final = """
    SELECT tenant, number, at, action, dead_letter, run_id, step, actor, request_id,
           coalesce(after ->> 'status', after -> 'answer' ->> 'status') AS status
    FROM audit_log WHERE tenant = $1 AND number > $2 ORDER BY number LIMIT $3
"""


class Change(Record):
    """One line of the audit log, as far as a list or a page has to know."""

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
        """The bulk operation that the line is about, if it is about one."""
        return self.request_id if self.action.startswith("bulk_") and self.request_id else None


async def heads(pool: Pool, tenant: str | None = None) -> dict[str, int]:
    """Return the number of the last line of each tenant: a few bytes each, however long the log is."""
    async with reading(pool, tenant) as connection:
        rows = await connection.fetch("SELECT tenant, number FROM audit_heads")
    return {row["tenant"]: row["number"] for row in rows}


async def changes_after(pool: Pool, tenant: str, number: int) -> list[Change]:
    """Return the next lines of a tenant after this number, the oldest first."""
    async with reading(pool, tenant) as connection:
        rows = await connection.fetch(_AFTER, tenant, number, CHUNK)
    return [Change.model_validate(dict(row)) for row in rows]
