"""What a tenant uses of its limits, counted for all consoles."""

from datetime import timedelta
from uuid import UUID

from redrive.postgres.tenancy import Executor, Pool, transaction


async def take_tokens(executor: Executor, tenant: str, kind: str, rate: float, wanted: int) -> int:
    """Take as many tokens of a bucket as are wanted, or as there are; it fills at this rate per second."""
    granted: int = await executor.fetchval("SELECT redrive.take_tokens($1, $2, $3, $4)", tenant, kind, rate, wanted)
    return granted


async def hold_stream(pool: Pool, tenant: str, stream: UUID, most: int, lasts: timedelta) -> bool:
    """Open a stream, or extend it; False if the tenant has reached its limit with others."""
    held: bool = await pool.fetchval("SELECT redrive.hold_stream($1, $2, $3, $4)", tenant, stream, most, lasts)
    return held


async def release_stream(pool: Pool, tenant: str, stream: UUID) -> None:
    """Release a stream's place."""
    async with transaction(pool, tenant) as connection:
        await connection.execute("DELETE FROM tenant_streams WHERE tenant = $1 AND id = $2", tenant, stream)
