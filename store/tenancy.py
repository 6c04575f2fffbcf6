"""Transactions that see one tenant's rows."""

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.pool import PoolConnectionProxy

# Quoted: asyncpg's classes take parameters for the type checker only.
Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"
EVERY_TENANT: Final = "*"


@contextlib.asynccontextmanager
async def transaction(pool: Pool, tenant: str) -> AsyncIterator[Connection]:
    """Open a transaction in which row level security shows the rows of this tenant only."""
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT set_config('redrive.tenant', $1, true)", tenant)
        yield connection
