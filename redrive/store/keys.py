"""Idempotency keys: the run of a tenant's key, its outcome, and the key's next generation.

An operator begins a generation: by a reset, or by restarting the dead letter of the key's run that is gone.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg
from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json

from redrive.contracts import KeyStatus, RunStatus
from redrive.errors import KeyInUse, KeyNotFound
from redrive.field_types import Moment
from redrive.keys import run_id_for_key
from redrive.postgres.paging import Page, Place, Query, check_limit, cut, read_cursor, select
from redrive.postgres.tenancy import Connection, Pool, reading, transaction
from redrive.postgres.values import Record, clean
from redrive.store.audit import Action, RunEntry, write_run_entry

_LOCK: Final = "SELECT generation, run_id, status FROM idempotency_keys WHERE tenant = $1 AND key = $2 FOR UPDATE"
# Without a fingerprint any request may have it. Reports of the old generation are ignored from now on.
_NEXT: Final = """
    UPDATE idempotency_keys SET generation = $3, run_id = $4, status = 'processing', run_status = NULL, response = NULL,
        error = NULL, request_hash = CASE WHEN $5 THEN request_hash ELSE '' END, updated_at = now()
    WHERE tenant = $1 AND key = $2
"""


class KeyRow(Record):
    """A key in a list."""

    tenant: str
    key: str
    domain: str
    user_id: str | None
    generation: int
    run_id: str
    pipeline: str
    status: KeyStatus
    run_status: RunStatus | None
    request_hash: str
    error: str | None
    expires_at: datetime
    created_at: datetime
    updated_at: datetime


class KeyRecord(KeyRow):
    """A key with its stored response."""

    response: Any


class KeyFilter(BaseModel):
    """Which keys. `tenant` None means all; `since` and `until` are about when a key was claimed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tenant: str | None = None
    status: KeyStatus | None = None
    since: Moment | None = None
    until: Moment | None = None


_COLUMNS: Final = ", ".join(KeyRow.model_fields)


_ONE: Final = select(f"{_COLUMNS}, response", "idempotency_keys", "WHERE tenant = $1 AND key = $2")


async def get_key(pool: Pool, tenant: str, key: str) -> KeyRecord | None:
    """Return a key with all its details."""
    async with reading(pool, tenant) as connection:
        row = await connection.fetchrow(_ONE, tenant, clean(key))
    return _record(row) if row else None


def _record(row: asyncpg.Record) -> KeyRecord:
    response = row["response"]
    return KeyRecord.model_validate(dict(row) | {"response": None if response is None else from_json(response)})


async def list_keys(pool: Pool, chosen: KeyFilter, limit: int = 50, cursor: str | None = None) -> Page[KeyRow]:
    """Return the most recently claimed keys, after the cursor of the previous page."""
    check_limit(limit)
    query = _query(chosen, read_cursor(cursor, chosen))
    order = "ORDER BY created_at DESC, key DESC, tenant DESC"
    sql = query.select(_COLUMNS, "idempotency_keys", order, limit + 1)
    async with reading(pool, chosen.tenant) as connection:
        records = await connection.fetch(sql, *query.parameters)
    rows = [KeyRow.model_validate(dict(record)) for record in records]
    return cut(rows, limit, lambda last: Place(last.created_at, last.key, last.tenant), chosen)


def _query(chosen: KeyFilter, place: Place | None) -> Query:
    query = Query()
    query.where_given("tenant = {}", chosen.tenant)
    query.where_given("status = {}", chosen.status)
    query.where_given("created_at >= {}", chosen.since)
    query.where_given("created_at < {}", chosen.until)
    if place is not None:
        query.where("(created_at, key, tenant) < ({}, {}, {})", place.at, place.id, place.kind)
    return query


# Keys without news for a while: the end of the run may have been reported while the database was down. A run that has
# an open row is asked for by that.
_UNHEARD: Final = select(
    _COLUMNS,
    "idempotency_keys AS known",
    """WHERE status = 'processing' AND updated_at < now() - $1::interval AND (updated_at, key, tenant) > ($3, $4, $5)
        AND ($6::text IS NULL OR tenant = $6)
        AND NOT EXISTS (SELECT FROM runs AS run WHERE run.run_id = known.run_id AND run.closed_at IS NULL)
    ORDER BY updated_at, key, tenant LIMIT $2""",
)
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def list_unheard(
    pool: Pool, tenant: str | None, quiet: timedelta, limit: int, after: KeyRow | None
) -> list[KeyRow]:
    """Return keys whose run should be queried, those longest without news first; no tenant: of all."""
    place = (after.updated_at, after.key, after.tenant) if after else (_BEGINNING, "", "")
    async with reading(pool, tenant) as connection:
        records = await connection.fetch(_UNHEARD, quiet, limit, *place, tenant)
    return [KeyRow.model_validate(dict(record)) for record in records]


_EXPIRED: Final = "SELECT DISTINCT tenant FROM {table} WHERE expires_at < now() - $1::interval"


_DELETE_KEYS: Final = """
    DELETE FROM idempotency_keys WHERE (tenant, key) IN (
        SELECT tenant, key FROM idempotency_keys
        WHERE tenant = $1 AND expires_at < now() - $2::interval AND updated_at < now() - $2::interval
            AND status <> 'processing'
        ORDER BY expires_at LIMIT $3 FOR UPDATE SKIP LOCKED)
"""


_DELETE_RESULTS: Final = """
    DELETE FROM step_results WHERE (tenant, key) IN (
        SELECT tenant, key FROM step_results AS result
        WHERE tenant = $1 AND expires_at < now() - $2::interval AND NOT EXISTS
            (SELECT FROM runs AS run WHERE run.run_id = result.run_id AND run.closed_at IS NULL)
        ORDER BY expires_at LIMIT $3 FOR UPDATE SKIP LOCKED)
"""


_DELETE_COUNTERS: Final = """
    DELETE FROM run_counters WHERE (tenant, run_id, name) IN (
        SELECT tenant, run_id, name FROM run_counters AS counter
        WHERE tenant = $1 AND expires_at < now() - $2::interval AND NOT EXISTS
            (SELECT FROM runs AS run WHERE run.run_id = counter.run_id AND run.closed_at IS NULL)
        ORDER BY expires_at LIMIT $3 FOR UPDATE SKIP LOCKED)
"""


_DELETES: Final = {
    "idempotency_keys": _DELETE_KEYS,
    "step_results": _DELETE_RESULTS,
    "run_counters": _DELETE_COUNTERS,
}


async def delete_expired(pool: Pool, since: timedelta, batch: int) -> int:
    """Delete a batch of each tenant's keys, stored results and counters that expired this long ago; return how many."""
    deleted = 0
    for table, delete in _DELETES.items():
        async with reading(pool, None) as connection:
            tenants = await connection.fetch(_EXPIRED.format(table=table), since)
        for (tenant,) in tenants:
            async with transaction(pool, tenant) as connection:
                tag = await connection.execute(delete, tenant, since, batch)
            deleted += int(tag.rpartition(" ")[2])
    return deleted


async def reset_key(pool: Pool, seen: KeyRow, *, actor: str, reason: str, forced: bool) -> KeyRecord:
    """Give a key, as it was read, its next generation: the next start with it creates a new run."""
    run_id = run_id_for_key(seen.tenant, seen.key, seen.generation + 1)
    async with transaction(pool, seen.tenant) as connection:
        row = await connection.fetchrow(_LOCK, seen.tenant, seen.key)
        if row is None:
            raise KeyNotFound(f"key {seen.key!r} of tenant {seen.tenant!r} is gone: nothing has to be reset")
        if (row["generation"], row["status"]) != (seen.generation, seen.status):
            raise KeyInUse(f"key {seen.key!r} has changed meanwhile ({row['status']}): look at it again")
        await connection.execute(_NEXT, seen.tenant, seen.key, seen.generation + 1, run_id, False)
        facts = {"key": seen.key, "generation": seen.generation, "run_id": seen.run_id, "status": seen.status}
        await write_run_entry(
            connection,
            RunEntry(
                action=Action.KEY_RESET,
                tenant=seen.tenant,
                run_id=seen.run_id,
                actor=actor,
                reason=reason,
                before=facts,
                after={"generation": seen.generation + 1, "run_id": run_id, "forced": forced},
            ),
        )
    record = await get_key(pool, seen.tenant, seen.key)
    if record is None:
        raise KeyNotFound(f"key {seen.key!r} of tenant {seen.tenant!r} is gone: nothing has to be reset")
    return record


async def follow_restart(connection: Connection, tenant: str, run_id: str) -> None:
    """Assign the key of a restarted run to the new run, if it still belongs to the old one."""
    row = await connection.fetchrow(
        """
        SELECT known.key, known.generation FROM idempotency_keys AS known JOIN runs AS run
            ON known.tenant = run.tenant AND known.key = run.idempotency_key AND known.run_id = run.run_id
        WHERE run.run_id = $1 FOR UPDATE OF known
        """,
        clean(run_id),
    )
    if row is not None:
        generation = row["generation"] + 1
        next_run = run_id_for_key(tenant, row["key"], generation)
        await connection.execute(_NEXT, tenant, row["key"], generation, next_run, True)
