"""Idempotency keys: which run belongs to a tenant's key, and what came of it."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import asyncpg
from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json

from redrive.claims import Claim, ClaimRequest, Settlement, Verdict
from redrive.contracts import MIB, KeyClaim, KeyStatus, RunStatus
from redrive.errors import InvalidInput
from redrive.keys import IdempotencyKey, run_id_for_key
from redrive.moments import Moment
from store.paging import Page, Place, Query, check_limit, read_cursor, write_cursor
from store.records import Record
from store.tenancy import Executor, Pool, Session, reading, scoped, transaction
from store.text import clean, clean_or_none, json_text

# A response up to this size comes along with the answer to a start; a bigger one is read from the row.
INLINE_LIMIT: Final = MIB // 16


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
    """A key with the response that it answers with."""

    response: Any


class KeyFilter(BaseModel):
    """Which keys. `tenant` None means all; `since` and `until` are about when a key was claimed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tenant: str | None = None
    status: KeyStatus | None = None
    since: Moment | None = None
    until: Moment | None = None


# A key that nobody has, as that of nearly every start. The function claim_key does this and all the rest, and takes
# twice as long. Neither waits for the disk: see there.
_TAKE_NEW: Final = """
    WITH scope AS MATERIALIZED (
        SELECT set_config('redrive.tenant', $1, true), set_config('synchronous_commit', 'off', true)
    )
    INSERT INTO idempotency_keys
        (tenant, key, domain, user_id, generation, run_id, pipeline, status, request_hash, expires_at)
    SELECT $1, $2, $3, $4, 0, $5, $6, 'processing', $7, $8 FROM scope
    ON CONFLICT DO NOTHING RETURNING true
"""


async def claim_key(database: Executor, request: ClaimRequest, *, free_failed: bool) -> Claim:
    """Take a key for a run, or say what is there. One round trip for a new key, another for one that is known."""
    if request.generation == 0 and await _take_new(database, request):
        return Claim(
            verdict=Verdict.CLAIMED,
            generation=0,
            run_id=request.run_id,
            status=KeyStatus.PROCESSING,
            request_hash=request.request_hash,
        )
    row = await database.fetchrow(
        "SELECT * FROM claim_key($1, $2, $3)", json_text(key_fields(request)), free_failed, INLINE_LIMIT
    )
    if row is None:
        raise LookupError(f"the claim of key {request.key!r} has no answer")
    response = row["response"]
    fields = dict(row) | {"response": None if response is None else from_json(response)}
    return Claim.model_validate(fields | {"has_response": response is not None})


async def _take_new(database: Executor, request: ClaimRequest) -> bool:
    domain, user_id = _named(request.key)
    taken = await database.fetchval(
        _TAKE_NEW,
        request.tenant,
        request.key,
        domain,
        user_id,
        request.run_id,
        request.pipeline,
        request.request_hash,
        request.expires_at,
    )
    return bool(taken)


def key_fields(request: ClaimRequest, settlement: Settlement | None = None) -> dict[str, Any]:
    """Return the row of a key, as the functions in the database take it."""
    domain, user_id = _named(request.key)
    fields = request.model_dump() | {"domain": domain, "user_id": user_id}
    if settlement is not None:
        fields |= {
            "run_status": settlement.status,
            "response": settlement.output,
            "error": clean_or_none(settlement.error),
        }
    return fields


def run_claim(
    *, tenant: str, key: str | None, run_id: str, pipeline: str, claim: KeyClaim | None, end: Settlement | None = None
) -> dict[str, Any] | None:
    """Return the row of the key that a run was started with; None if the run is not the one of its key."""
    if key is None or claim is None or run_id != run_id_for_key(tenant, key, claim.generation):
        # Started by hand, under another id: a key's run is the one that is computed from it.
        return None
    request = ClaimRequest(tenant=tenant, key=key, run_id=run_id, pipeline=pipeline, **claim.model_dump())
    return key_fields(request, end)


def _named(key: str) -> tuple[str, str | None]:
    """Return the domain and the user that a key names, if it follows the convention."""
    try:
        parsed = IdempotencyKey.parse(key)
    except InvalidInput:
        return "", None
    return clean(parsed.domain), clean(parsed.user)


async def settle_key(database: Executor, request: ClaimRequest, settlement: Settlement) -> None:
    """Write how the run of a key ended."""
    await database.execute("SELECT settle_key($1)", json_text(key_fields(request, settlement)))


# A generation above the first is not given back: its number would be used for a second run.
_RELEASE: Final = """
    DELETE FROM idempotency_keys
    WHERE tenant = $1 AND key = $2 AND run_id = $3 AND generation = 0 AND status = 'processing' AND request_hash = $4
"""


async def release_key(session: Session, request: ClaimRequest) -> None:
    """Give back a key whose start was refused."""
    async with scoped(session, request.tenant):
        await session.execute(_RELEASE, request.tenant, request.key, request.run_id, request.request_hash)


_COLUMNS: Final = ", ".join(KeyRow.model_fields)


async def get_key(pool: Pool, tenant: str, key: str) -> KeyRecord | None:
    """Return a key with all that is known of it."""
    async with reading(pool, tenant) as connection:
        row = await connection.fetchrow(
            f"SELECT {_COLUMNS}, response FROM idempotency_keys WHERE tenant = $1 AND key = $2",  # noqa: S608
            tenant,
            clean(key),
        )
    return _record(row) if row else None


def _record(row: asyncpg.Record) -> KeyRecord:
    response = row["response"]
    return KeyRecord.model_validate(dict(row) | {"response": None if response is None else from_json(response)})


async def list_keys(pool: Pool, chosen: KeyFilter, limit: int = 50, cursor: str | None = None) -> Page[KeyRow]:
    """Return the keys that were claimed last, after the cursor of the page before."""
    check_limit(limit)
    query = _query(chosen, read_cursor(cursor, chosen))
    async with reading(pool, chosen.tenant) as connection:
        records = await connection.fetch(
            f"SELECT {_COLUMNS} FROM idempotency_keys WHERE {query.sql} "  # noqa: S608
            f"ORDER BY created_at DESC, key DESC, tenant DESC LIMIT {query.add(limit + 1)}",
            *query.parameters,
        )
    rows = [KeyRow.model_validate(dict(record)) for record in records[:limit]]
    if len(records) <= limit:
        return Page(rows, None)
    last = rows[-1]
    return Page(rows, write_cursor(Place(last.created_at, last.key, last.tenant), chosen))


def _query(chosen: KeyFilter, place: Place | None) -> Query:
    query = Query()
    if chosen.tenant is not None:
        query.where("tenant = {}", chosen.tenant)
    if chosen.status is not None:
        query.where("status = {}", chosen.status.value)
    if chosen.since is not None:
        query.where("created_at >= {}", chosen.since)
    if chosen.until is not None:
        query.where("created_at < {}", chosen.until)
    if place is not None:
        query.where("(created_at, key, tenant) < ({}, {}, {})", place.at, place.id, place.kind)
    return query


# Whose run nobody has heard of for a while: its end may have been told while the database was away.
_UNHEARD: Final = f"""
    SELECT {_COLUMNS} FROM idempotency_keys WHERE status = 'processing' AND updated_at < now() - $1::interval
    ORDER BY updated_at LIMIT $2
"""  # noqa: S608


async def list_unheard(pool: Pool, quiet: timedelta, limit: int) -> list[KeyRow]:
    """Return keys of all tenants whose run should be asked for, the longest unheard of first."""
    async with reading(pool, None) as connection:
        records = await connection.fetch(_UNHEARD, quiet, limit)
    return [KeyRow.model_validate(dict(record)) for record in records]


async def touch_keys(pool: Pool, tenant: str, keys: Sequence[str]) -> None:
    """Note that the runs of these keys are open still."""
    async with transaction(pool, tenant) as connection:
        await connection.execute(
            "UPDATE idempotency_keys SET updated_at = now() WHERE tenant = $1 AND key = ANY($2)", tenant, list(keys)
        )


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
_DELETES: Final = {"idempotency_keys": _DELETE_KEYS, "step_results": _DELETE_RESULTS}


async def delete_expired(pool: Pool, since: timedelta, batch: int) -> int:
    """Delete a batch of each tenant's keys and stored results that expired so long ago, and return how many."""
    deleted = 0
    for table, delete in _DELETES.items():
        async with reading(pool, None) as connection:
            tenants = await connection.fetch(_EXPIRED.format(table=table), since)
        for (tenant,) in tenants:
            async with transaction(pool, tenant) as connection:
                tag = await connection.execute(delete, tenant, since, batch)
            deleted += int(tag.rpartition(" ")[2])
    return deleted
