"""What the example needs besides a stack: a database of its own, and a Redis if the stack has none."""

import asyncio
import contextlib
import hashlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from redrive.bridges.events.settings import EventSettings
from redrive.contracts import Broker
from redrive.errors import StackError
from redrive.starter.stack.children import Supervisor
from redrive.starter.stack.ports import reserve
from redrive.starter.stack.redis import REDIS_PORT, RedisServer, find_redis
from redrive.starter.stack.state import StackInfo

NAME: Final = "growth"
"""The name of the example's database, and of the login that owns it."""


async def keep_database(owner_url: str) -> str:
    """Create the example's database and its login on the stack's server, unless they are there; return its address."""
    parts = urlsplit(owner_url)
    # Always the same: the login may be there from an earlier demo.
    password = hashlib.sha256(f"{NAME}:{parts.password}".encode()).hexdigest()
    try:
        connection = await asyncpg.connect(owner_url)
        try:
            await _create(connection, password)
        finally:
            await connection.close()
    except (OSError, asyncpg.PostgresError) as error:
        raise StackError(
            f"the database {NAME!r} cannot be created ({type(error).__name__}): set GROWTH_DATABASE_URL to one of yours"
        ) from error
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{NAME}:{password}@{place}", path=f"/{NAME}"))


async def _create(connection: "asyncpg.Connection[asyncpg.Record]", password: str) -> None:
    if not await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", NAME):
        await connection.execute(f"CREATE ROLE {NAME} LOGIN PASSWORD '{password}'")
    if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", NAME):
        await connection.execute(f"CREATE DATABASE {NAME} OWNER {NAME}")


@contextlib.asynccontextmanager
async def redis_for(info: StackInfo, configured: EventSettings) -> AsyncIterator[str]:
    """Yield the address of the configured Redis, of the stack's, or of one that runs for the length of the block."""
    known = configured.redis_url or info.brokers.get(Broker.REDIS)
    if known:
        yield known.get_secret_value()
        return
    async with _own_redis() as url:
        yield url


@contextlib.asynccontextmanager
async def _own_redis() -> AsyncIterator[str]:
    reservation = reserve("the example's Redis", asked=None, preferred=REDIS_PORT + 200)
    with tempfile.TemporaryDirectory(prefix="redrive-growth-") as directory:
        server = RedisServer(find_redis(), Path(directory) / "redis", reservation.number)
        supervisor = Supervisor(Path(directory))
        try:
            await supervisor.start(*server.children)
            yield server.url
        finally:
            await asyncio.shield(supervisor.stop())
            reservation.close()
