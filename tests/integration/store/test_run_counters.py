"""Counters of runs: added to at once by many, bounded, and deleted when their run is long over."""

import asyncio
from datetime import timedelta

from redrive.postgres.tenancy import Pool
from redrive.store.keys import delete_expired
from redrive.store.runs import add_to_counter
from tests.integration.store.letters import new_tenant
from tests.integration.store.test_dead_letters import Owner


async def add(pool: Pool, tenant: str, amount: int, limit: int | None = None) -> int | None:
    """Add to the counter of the test."""
    return await add_to_counter(pool, tenant=tenant, run_id="run-1", name="tokens", amount=amount, limit=limit)


async def test_limit_holds_for_calls_at_once(pool: Pool, tenant: str) -> None:
    """Of forty calls that each take three of a hundred, thirty-three are allowed, whatever their order."""
    values = await asyncio.gather(*(add(pool, tenant, 3, limit=100) for _ in range(40)))
    assert sorted(value for value in values if value is not None) == list(range(3, 100, 3))
    assert await add(pool, tenant, 0) == 99


async def test_amount_is_given_back(pool: Pool, tenant: str) -> None:
    """What was not used can be taken again, and another tenant's run of the same id has its own counter."""
    assert await add(pool, tenant, 10, limit=10) == 10
    assert await add(pool, tenant, -4) == 6
    assert await add(pool, tenant, 4, limit=10) == 10
    assert await add(pool, new_tenant(), 1, limit=10) == 1


async def test_expired_counters_are_deleted_unless_their_run_is_open(pool: Pool, owner: Owner, tenant: str) -> None:
    """The sweep deletes counters that nobody has used for a month, but a parked run keeps its own."""
    other = new_tenant()
    for whose in (tenant, other):
        await add(pool, whose, 1)
    sql = "UPDATE run_counters SET expires_at = now() - interval '1 day' WHERE tenant = ANY($1)"
    await owner.execute(sql, [tenant, other])
    await owner.execute(
        "INSERT INTO runs (run_id, tenant, pipeline, status, started_at) VALUES ($1, $2, 'p', 'DLQ_PENDING', now())",
        f"run-{tenant}",
        tenant,
    )
    await owner.execute("UPDATE run_counters SET run_id = $1 WHERE tenant = $2", f"run-{tenant}", tenant)
    assert await delete_expired(pool, timedelta(hours=1), 100) == 1
    assert await owner.fetchval("SELECT count(*) FROM run_counters WHERE tenant = $1", tenant) == 1
