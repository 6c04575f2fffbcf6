"""One worker for all tests of a file, and a case of its own for each test."""

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from redrive import Redrive, Registry
from redrive.connection import connect_temporal
from redrive.postgres.database import open_pool
from redrive.settings import Settings
from redrive.starter.stack.state import StackInfo
from redrive.store.audit import verify
from redrive.worker import running_worker
from tests.conftest import owner_url
from tests.integration.dead_letters.lab import SERVICES, Case, register

BUILD = "build-of-the-tests"


@pytest.fixture(scope="module")
def lab_settings(stack: StackInfo, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings for the session's servers, with a task queue of the file's own."""
    return Settings(
        temporal_address=stack.temporal_address,
        database_url=stack.database_url,
        state_dir=tmp_path_factory.mktemp("lab"),
        task_queue=f"queue-{uuid.uuid4().hex[:12]}",
        build_id=BUILD,
    )


@pytest.fixture(scope="module")
async def lab(lab_settings: Settings) -> AsyncIterator[Redrive]:
    """A worker that knows the laboratory's pipelines, and a client of it."""
    registry = Registry()
    register(registry)
    async with running_worker(lab_settings, registry):
        client = await connect_temporal(lab_settings)
        yield Redrive(client, task_queue=lab_settings.task_queue, registry=registry)


@pytest.fixture
async def case(lab: Redrive, lab_settings: Settings, stack: StackInfo, tmp_path: Path) -> AsyncIterator[Case]:
    """A run to be; afterwards its tenant's audit log is verified."""
    url = owner_url(stack)
    made = Case(lab, await connect_temporal(lab_settings), url, lab_settings.task_queue)
    yield made
    del SERVICES[made.name]
    pool = await open_pool(url, max_size=1)
    try:
        proofs = await verify(pool, made.tenant)
    finally:
        await pool.close()
    assert all(proof.first_broken is None for proof in proofs), proofs
