"""A thousand starts with one key, from four processes at once, two of which are killed."""

import pytest

from redrive import Redrive, Registry, RunStatus
from redrive.connection import database_url
from redrive.contracts import KeyStatus
from redrive.keys import run_id_for_key
from redrive.postgres.tenancy import Pool
from redrive.settings import Settings
from redrive.store.keys import get_key
from tests.chaos.key_burst import Burst
from tests.chaos.key_caller import CallerConfig, keyed_registry
from tests.conftest import WorkerFactory

CALLS: list[str] = []


@pytest.fixture
def registry() -> Registry:
    """The code of the pipeline, counting."""
    CALLS.clear()
    return keyed_registry(CALLS)


async def test_a_burst_from_killed_and_living_processes_is_one_run(
    *, worker: WorkerFactory, caller: Redrive, settings: Settings, pool: Pool, tenant: str
) -> None:
    """One run id, one workflow, one call of the step, and at most one caller that was the first."""
    config = CallerConfig(
        temporal_address=settings.temporal_address or "",
        database_url=database_url(settings),
        task_queue=settings.task_queue,
        tenant=tenant,
        key="burst",
        starts=250,
        at_once=25,
    )
    burst = Burst.of(config, callers=4, killed=2)
    run_id = run_id_for_key(tenant, "burst")
    async with worker(), burst.running():
        await burst.until_heard(1)
        result = await caller.result(run_id)
    record = await get_key(pool, tenant, "burst")
    assert burst.violations(run_id, set(CALLS)) == []
    assert len(CALLS) == 1
    # A machine that is busy may let the database answer too late: then a caller tries again.
    assert set(burst.errors) <= {"outcome_unknown"}
    assert burst.answered >= 2 * config.starts
    assert result.status is RunStatus.SUCCESS
    assert record is not None
    assert (record.status, record.generation, record.response) == (KeyStatus.COMPLETED, 0, {"n": 2})
