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
# A connection outside a pool.
Session: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
# Anything that takes a statement.
Executor: TypeAlias = (
    "asyncpg.Pool[asyncpg.Record] | asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]"
)
# The quarantine: messages whose tenant is unknown. No tenant can have this name (`NAME_PATTERN`): only
# owners, who read the rows of all tenants, see these.
QUARANTINE: Final = "(quarantine)"
_EVERY_TENANT: Final = "*"
_ENTER: Final = "SELECT set_config('redrive.tenant', $1, true)"
_UNHURRIED: Final = ", set_config('synchronous_commit', 'off', true)"
_IN_ORDER: Final = "".join(
    f", set_config('enable_{way}', 'off', true)" for way in ("sort", "incremental_sort", "bitmapscan", "seqscan")
)


@contextlib.asynccontextmanager
async def transaction(
    pool: Pool, tenant: str, alone_with: str = "", *, repeatable: bool = False
) -> AsyncIterator[Connection]:
    """Open a transaction in which row level security allows only the rows of this tenant.

    `alone_with` names what no other transaction may work on until this one ends, even if it is in no table yet.
    A `repeatable` one does not wait for the disk: a crash of PostgreSQL may undo it, and it is repeated.
    """
    _check_is_one(tenant)
    async with pool.acquire() as connection, connection.transaction():
        if alone_with:
            # The same lock as in put_dead_letter. What is read after this statement is the latest.
            await connection.execute(_ENTER + ", pg_advisory_xact_lock(hashtextextended($2, 0))", tenant, alone_with)
        else:
            await connection.execute(_ENTER + _UNHURRIED if repeatable else _ENTER, tenant)
        yield connection


async def go_over_to(connection: Connection, tenant: str) -> None:
    """Switch the rest of a transaction to the rows of another tenant."""
    _check_is_one(tenant)
    await connection.execute(_ENTER, tenant)


@contextlib.asynccontextmanager
async def scoped(session: Session, tenant: str) -> AsyncIterator[None]:
    """Open a transaction like `transaction`, on a connection outside a pool."""
    _check_is_one(tenant)
    async with session.transaction():
        await session.execute(_ENTER, tenant)
        yield


@contextlib.asynccontextmanager
async def reading(pool: Pool, tenant: str | None, *, in_order: bool = False) -> AsyncIterator[Connection]:
    """Open a transaction that reads one tenant's rows, or all with None, as of one moment.

    `in_order` is for the first rows of a long list: they should come from an index in the list's order. The planner
    assumes that filters are independent, expects few rows, and would otherwise read and sort them all.
    """
    if tenant is not None:
        _check_is_one(tenant)
    async with pool.acquire() as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        await connection.execute(_ENTER + _IN_ORDER if in_order else _ENTER, tenant or _EVERY_TENANT)
        yield connection


def _check_is_one(tenant: str) -> None:
    if tenant in {"", _EVERY_TENANT}:
        raise InvalidInput(f"{tenant!r} is not a tenant's name")
