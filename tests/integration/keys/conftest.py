"""A caller whose keys are kept in the session's database, and its pool."""

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from redrive import Redrive, Registry
from redrive.connection import database_url
from redrive.idempotency.postgres_claims import PostgresClaims
from redrive.postgres.database import open_pool
from redrive.postgres.tenancy import Pool
from redrive.settings import Settings
from tests.integration.store.letters import new_tenant


@pytest.fixture
def tenant() -> str:
    """A tenant of the test's own."""
    return new_tenant()


@pytest.fixture
async def pool(settings: Settings) -> AsyncIterator[Pool]:
    """The application's connections to the database."""
    async with await open_pool(database_url(settings), max_size=2) as pool:
        yield pool


@pytest.fixture
async def caller(settings: Settings, temporal: Client, registry: Registry) -> AsyncIterator[Redrive]:
    """A client with the modules' code and durable keys."""
    claims = PostgresClaims(database_url(settings), max_size=4)
    async with Redrive(temporal, task_queue=settings.task_queue, registry=registry, claims=claims) as redrive:
        yield redrive
