"""An outbox of the test's own, in a schema of its own, in a database that is not Redrive's."""

import uuid
from collections.abc import AsyncIterator

import asyncpg
import pytest
from temporalio.client import Client

from redrive import Registry
from redrive.outbox.rows import Outbox, install
from redrive.settings import Settings
from redrive.starter.stack.state import StackInfo
from tests.conftest import owner_url
from tests.integration.outbox.outbox_lab import OutboxLab


@pytest.fixture(scope="session")
async def team_url(stack: StackInfo) -> str:
    """A database of the team's own, on the session's server."""
    name = f"team_{uuid.uuid4().hex[:8]}"
    connection = await asyncpg.connect(owner_url(stack))
    try:
        await connection.execute(f"CREATE DATABASE {name}")
    finally:
        await connection.close()
    return f"{owner_url(stack).rsplit('/', 1)[0]}/{name}"


@pytest.fixture
async def outbox(team_url: str) -> AsyncIterator[Outbox]:
    """An outbox that is installed."""
    schema = f"shop_{uuid.uuid4().hex[:8]}"
    await install(team_url, schema)
    async with Outbox(team_url, schema) as made:
        yield made


@pytest.fixture
def outbox_lab(outbox: Outbox, settings: Settings, temporal: Client, registry: Registry) -> OutboxLab:
    """An outbox with a pipeline `order`."""
    return OutboxLab(outbox, settings, temporal, registry)


@pytest.fixture
def lab(outbox_lab: OutboxLab) -> OutboxLab:
    """The same, under a short name."""
    return outbox_lab
