"""Reading bulk operations: lists, one with its progress, its items. Without a tenant: of all tenants."""

from typing import Final

import asyncpg
from pydantic_core import from_json

from redrive.bulk_records import BulkItem, BulkItems, BulkProgress, BulkStatus, BulkView, ItemsRequest
from redrive.errors import BulkNotFound
from redrive.postgres.paging import Query, check_limit, ids_beginning, select
from redrive.postgres.tenancy import Connection, Pool, reading
from redrive.postgres.values import clean
from redrive.prefixes import only_one

_COUNTS: Final = """
    SELECT bulk.status, bulk.total,
        extract(epoch FROM clock_timestamp() - bulk.last_sent_at)::float AS since_sent,
        count(item.*) FILTER (WHERE item.status = 'PENDING') AS pending,
        count(item.*) FILTER (WHERE item.status = 'SENDING') AS sending,
        count(item.*) FILTER (WHERE item.status = 'ACCEPTED') AS accepted,
        count(item.*) FILTER (WHERE item.status = 'APPLIED') AS applied,
        count(item.*) FILTER (WHERE item.status = 'SKIPPED') AS skipped,
        count(item.*) FILTER (WHERE item.status = 'FAILED') AS failed,
        count(item.*) FILTER (WHERE item.position < bulk.canary AND item.status = 'PENDING') AS canary_pending,
        count(item.*) FILTER (WHERE item.position < bulk.canary AND item.status IN ('PENDING', 'SENDING', 'ACCEPTED'))
            AS canary_open
    FROM bulk_operations AS bulk LEFT JOIN bulk_items AS item ON (item.tenant, item.bulk_id) = (bulk.tenant, bulk.id)
    WHERE bulk.tenant = $1 AND bulk.id = $2
    GROUP BY bulk.tenant, bulk.id
"""
_COLUMNS: Final = """
    tenant, id, verb, status, options, plan_hash, request_id, requested_by, reason, stopped_because,
    started_at, finished_at
"""
_ONE: Final = select(_COLUMNS, "bulk_operations", "WHERE id = $1")
_OPEN: Final = select(_COLUMNS, "bulk_operations", "WHERE status <> ALL($1) ORDER BY started_at LIMIT 50")


async def progress(connection: Connection, tenant: str, bulk_id: str) -> BulkProgress:
    """Count the items by their status."""
    row = await connection.fetchrow(_COUNTS, tenant, clean(bulk_id))
    if row is None:
        raise BulkNotFound(f"no bulk operation has the id {bulk_id[:80]!r} in tenant {tenant!r}")
    return BulkProgress.model_validate(dict(row))


async def get_bulk(pool: Pool, tenant: str | None, bulk_id: str) -> BulkView:
    """Return a bulk operation, by its id or a beginning of it that no other has, or raise if there is none."""
    async with reading(pool, tenant) as connection:
        row = await connection.fetchrow(_ONE, clean(bulk_id))
        if row is None and not "bulk-".startswith(bulk_id):
            found = await ids_beginning(connection, "bulk_operations", [clean(bulk_id), f"bulk-{clean(bulk_id)}"])
            row = await connection.fetchrow(_ONE, only_one(bulk_id, found, "bulk operation", BulkNotFound))
        if row is None:
            raise BulkNotFound(f"no bulk operation has the id {bulk_id[:80]!r}; `redrive bulk list` shows the newest")
        return await _view(connection, row)


async def list_bulks(pool: Pool, tenant: str | None, limit: int = 20) -> list[BulkView]:
    """Return the newest bulk operations of a tenant, or of all."""
    check_limit(limit)
    query = Query()
    query.where_given("tenant = {}", tenant)
    sql = query.select(_COLUMNS, "bulk_operations", "ORDER BY started_at DESC, id DESC", limit)
    async with reading(pool, tenant) as connection:
        rows = await connection.fetch(sql, *query.parameters)
        return [await _view(connection, row) for row in rows]


async def open_bulks(pool: Pool) -> list[BulkView]:
    """Return the bulk operations of all tenants that have not ended."""
    async with reading(pool, None) as connection:
        rows = await connection.fetch(_OPEN, [status for status in BulkStatus if status.closed])
        return [await _view(connection, row) for row in rows]


async def list_items(pool: Pool, tenant: str | None, asked: ItemsRequest) -> BulkItems:
    """Return items in the order in which they are sent."""
    query = Query()
    query.where("bulk_id = {}", clean(asked.bulk_id))
    query.where_given("tenant = {}", tenant)
    query.where_given("status = {}", asked.status)
    query.where_given("position > {}", asked.after)
    columns = "position, letter_id, run_id, step, status, why, updated_at"
    sql = query.select(columns, "bulk_items", "ORDER BY position", asked.limit + 1)
    async with reading(pool, tenant) as connection:
        rows = await connection.fetch(sql, *query.parameters)
    items = [BulkItem.model_validate(dict(row)) for row in rows[: asked.limit]]
    return BulkItems(items=items, after=items[-1].position if len(rows) > asked.limit else None)


async def _view(connection: Connection, row: asyncpg.Record) -> BulkView:
    return BulkView(
        **dict(row) | {"options": from_json(row["options"])},
        progress=await progress(connection, row["tenant"], row["id"]),
    )
