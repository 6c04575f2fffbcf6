"""Transactions that see one tenant's rows."""

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final, TypeAlias

from redrive.errors import InvalidInput

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.pool import PoolConnectionProxy

# Quoted: asyncpg's classes take parameters for the type checker only.
Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"
_EVERY_TENANT: Final = "*"


@contextlib.asynccontextmanager
async def transaction(pool: Pool, tenant: str) -> AsyncIterator[Connection]:
    """Open a transaction in which row level security shows, and lets write, the rows of this tenant only."""
    if tenant in {"", _EVERY_TENANT}:
        raise InvalidInput(f"{tenant!r} is not a tenant's name")
    async with pool.acquire() as connection, connection.transaction():
        await _enter(connection, tenant)
        yield connection


@contextlib.asynccontextmanager
async def reading(pool: Pool, tenant: str | None) -> AsyncIterator[Connection]:
    """Open a transaction that reads the rows of a tenant, or with None of all, as they are at one moment."""
    if tenant is not None and tenant in {"", _EVERY_TENANT}:
        raise InvalidInput(f"{tenant!r} is not a tenant's name")
    async with pool.acquire() as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        await _enter(connection, tenant or _EVERY_TENANT)
        yield connection


async def _enter(connection: Connection, tenant: str) -> None:
    await connection.execute("SELECT set_config('redrive.tenant', $1, true)", tenant)
