"""A PostgreSQL of these tests' own: they make roles, which belong to a whole server."""

import contextlib
import itertools
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from redrive.postgres.database import connect, open_pool
from redrive.postgres.tenancy import Pool
from redrive.settings import Settings
from redrive.starter.stack.stack import Stack, wipe
from redrive.store.migrate import migrate
from tests.conftest import owner_url
from tests.integration.store.letters import new_tenant

_NUMBERS = itertools.count(1)


@contextlib.asynccontextmanager
async def postgres_server() -> AsyncIterator[str]:
    """Run a PostgreSQL, and yield its address without a database's name."""
    with tempfile.TemporaryDirectory(prefix="redrive-test-", ignore_cleanup_errors=True) as path:
        state_dir = Path(path)
        state_dir.chmod(0o711)
        settings = Settings(temporal_address="127.0.0.1:1", database_url=None)
        async with Stack(settings, state_dir=state_dir, workers=0) as stack:
            yield owner_url(stack.info).rpartition("/")[0]
        await wipe(state_dir)


@pytest.fixture(scope="session")
async def server_url() -> AsyncIterator[str]:
    """The address of a server, without a database's name."""
    async with postgres_server() as url:
        yield url


@pytest.fixture
async def database_url(server_url: str) -> str:
    """The address of a new, empty database."""
    return await new_database(server_url)


async def new_database(server_url: str) -> str:
    """Make an empty database and return its address."""
    name = f"test_{next(_NUMBERS)}"
    connection = await connect(f"{server_url}/postgres")
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    return f"{server_url}/{name}"


@pytest.fixture(scope="module")
async def migrated_url(server_url: str) -> str:
    """The address of a database that is up to date, for all tests of a module."""
    url = await new_database(server_url)
    await migrate(url)
    return url


@pytest.fixture(scope="module")
async def pool(migrated_url: str) -> AsyncIterator[Pool]:
    """The application's connections to it."""
    async with await open_pool(migrated_url) as pool:
        yield pool


@pytest.fixture
async def owner(migrated_url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A connection of the owner of its tables, whom row level security does not bind."""
    connection = await connect(migrated_url)
    await connection.execute("SET search_path = redrive")
    yield connection
    await connection.close()


@pytest.fixture
def tenant() -> str:
    """A tenant of the test's own."""
    return new_tenant()
