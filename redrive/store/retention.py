"""Deletes old closed records in small batches. The database's functions protect open ones."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from redrive.errors import RedriveError
from redrive.postgres.tenancy import Pool, reading, transaction
from redrive.settings import RecordKind, RetentionSettings
from redrive.store.audit import verify

BATCH: Final = 500
# In this order: a run's row stays until its dead letters and its event are gone.
_TABLES: Final = {
    RecordKind.BULK: ("bulk",),
    RecordKind.APPROVALS: ("approvals",),
    RecordKind.DEAD_EVENTS: ("dead_events",),
    RecordKind.DEAD_MESSAGES: ("dead_messages",),
    RecordKind.EVENTS: ("events",),
    RecordKind.DEAD_LETTERS: ("dead_letters", "refused_messages", "alerts"),
    RecordKind.RUNS: ("runs",),
}
_PURGE: Final = "SELECT * FROM purge($1, $2, $3, $4, $5, $6, $7)"


@dataclass(frozen=True)
class Purged:
    """How many rows of a kind a batch has deleted, or would delete."""

    tenant: str
    kind: RecordKind
    count: int


class AuditNotWhole(RedriveError):
    """An audit log that was changed is not cut: the cut would destroy the evidence."""

    code = "audit_broken"


@dataclass(frozen=True, kw_only=True)
class Purge:
    """What to purge: which tenant, how old, by whom; `dry_run` counts only."""

    keep: RetentionSettings
    who: str
    dry_run: bool = False
    batch: int = BATCH


async def tenants(pool: Pool) -> list[str]:
    """Return all tenants that have rows. The owners' own audit log belongs to none of them."""
    async with reading(pool, None) as connection:
        rows = await connection.fetch("SELECT DISTINCT * FROM tenants_with_rows() AS tenant ORDER BY tenant")
    return [row["tenant"] for row in rows if row["tenant"] != "*"]


async def purge_tenant(pool: Pool, tenant: str, wanted: Purge) -> AsyncIterator[Purged]:
    """Purge a tenant batch by batch, each in its own transaction: it may be interrupted anywhere."""
    now = datetime.now(UTC)
    for kind, tables in _TABLES.items():
        keep = wanted.keep.of(kind)
        for table in tables if keep is not None else ():
            async for count in _purge_table(pool, tenant, table, now - (keep or timedelta()), wanted):
                yield Purged(tenant, kind, count)
    if wanted.keep.audit is not None:
        async for count in _cut_audit(pool, tenant, wanted.keep.audit, wanted):
            yield Purged(tenant, RecordKind.AUDIT, count)


async def _purge_table(pool: Pool, tenant: str, table: str, before: datetime, wanted: Purge) -> AsyncIterator[int]:
    at: datetime | None = None
    last: str | None = None
    while True:
        async with transaction(pool, tenant) as connection:
            row = await connection.fetchrow(_PURGE, table, before, wanted.batch, at, last, wanted.who, wanted.dry_run)
        if row is None or row["seen"] == 0:
            return
        yield row["deleted"]
        at, last = row["last_at"], row["last_id"]


async def _cut_audit(pool: Pool, tenant: str, keep: timedelta, wanted: Purge) -> AsyncIterator[int]:
    due = await _cut(pool, tenant, keep, wanted, dry_run=True)
    if wanted.dry_run or not due:
        yield due
        return
    if any(not proof.is_whole for proof in await verify(pool, tenant)):
        raise AuditNotWhole(f"the audit log of tenant {tenant!r} was changed, so it is not cut: `redrive audit verify`")
    while count := await _cut(pool, tenant, keep, wanted, dry_run=False):
        yield count


async def _cut(pool: Pool, tenant: str, keep: timedelta, wanted: Purge, *, dry_run: bool) -> int:
    async with transaction(pool, tenant) as connection:
        count: int = await connection.fetchval(
            "SELECT cut_audit($1, $2, $3, $4)", keep, wanted.batch, wanted.who, dry_run
        )
    return count
