"""A process dies at each point of a start with a key, and of the end of its run: what the next caller finds."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from redrive import Redrive, Registry, RunStatus
from redrive.connection import database_url
from redrive.contracts import KeyStatus
from redrive.keys import run_id_for_key
from redrive.postgres.tenancy import Pool
from redrive.settings import Settings
from redrive.store.keys import get_key
from tests.chaos.key_caller import PIPELINE, Caller, CallerConfig, Point, keyed_registry
from tests.conftest import WorkerFactory

KILLED = -signal.SIGKILL
KEY = "order:ann:4711:pay:v1"


@pytest.fixture
def calls() -> list[str]:
    """The execution of each call of the step, in order."""
    return []


@pytest.fixture
def registry(calls: list[str]) -> Registry:
    """The code of the pipeline, counting."""
    return keyed_registry(calls)


def config(settings: Settings, tenant: str, dies_when: Point | None = None, **changes: object) -> CallerConfig:
    """What a caller of this test is told."""
    return CallerConfig(
        temporal_address=settings.temporal_address or "",
        database_url=database_url(settings),
        task_queue=settings.task_queue,
        tenant=tenant,
        key=KEY,
        dies_when=dies_when,
        **changes,
    )


async def dead_caller(settings: Settings, tenant: str, dies_when: Point, **changes: object) -> None:
    """Have a caller die at a point."""
    caller = Caller(config(settings, tenant, dies_when, **changes))
    assert await asyncio.wait_for(caller.run(), 60) == KILLED
    assert caller.answers == []


async def test_a_caller_that_dies_after_the_claim_is_healed_by_the_next(
    *, worker: WorkerFactory, caller: Redrive, settings: Settings, pool: Pool, tenant: str, calls: list[str]
) -> None:
    """The row is there, the run is not: the next caller with the key starts it, and is told that it did."""
    await dead_caller(settings, tenant, "claimed")
    left_behind = await get_key(pool, tenant, KEY)
    healed = await caller.start(PIPELINE, {"n": 1}, tenant=tenant, key=KEY)
    again = await caller.start(PIPELINE, {"n": 1}, tenant=tenant, key=KEY)
    async with worker():
        result = await caller.result(healed.run_id)
    assert left_behind is not None
    assert left_behind.status is KeyStatus.PROCESSING
    assert (healed.run_id, healed.is_cached, again.is_cached) == (left_behind.run_id, False, True)
    assert (result.output, len(calls)) == ({"n": 2}, 1)


async def test_a_caller_that_dies_after_the_start_has_started_one_run(
    *, worker: WorkerFactory, caller: Redrive, settings: Settings, tenant: str, calls: list[str]
) -> None:
    """The run is there, its caller never heard of it: the next one finds it."""
    await dead_caller(settings, tenant, "started")
    found = await caller.start(PIPELINE, {"n": 1}, tenant=tenant, key=KEY)
    async with worker():
        result = await caller.result(found.run_id)
    assert found.is_cached
    assert (result.status, len(calls)) == (RunStatus.SUCCESS, 1)


async def test_a_caller_that_dies_before_it_gives_the_key_back_blocks_nobody(
    *, worker: WorkerFactory, caller: Redrive, settings: Settings, pool: Pool, tenant: str, calls: list[str]
) -> None:
    """No worker knew the pipeline and the caller died: the same request starts as soon as it can."""
    async with worker():
        await dead_caller(settings, tenant, "before_release", knows_the_code=False, pipeline="unknown")
        left_behind = await get_key(pool, tenant, KEY)
        # What was refused then is known now.
        registry = keyed_registry(calls)
        registry.pipelines["unknown"] = registry.pipelines[PIPELINE]
        late = Redrive(caller._client, task_queue=settings.task_queue, registry=registry, claims=caller._claims)
        started = await late.start("unknown", {"n": 1}, tenant=tenant, key=KEY)
        await caller.result(started.run_id)
    assert left_behind is not None
    assert (started.run_id, started.is_cached) == (left_behind.run_id, False)


@pytest.mark.parametrize("point", ["before_settle", "settled"])
async def test_a_caller_that_dies_while_it_mends_the_row_leaves_that_to_the_next(
    *, caller: Redrive, settings: Settings, pool: Pool, tenant: str, point: Point
) -> None:
    """The end of a run was told nobody; whoever finds out and dies over it, the next caller has the same answer."""
    started = await caller.start(PIPELINE, {"n": 1}, tenant=tenant, key=KEY)
    await caller._client.get_workflow_handle(started.run_id).terminate("test")
    await dead_caller(settings, tenant, point)
    between = await get_key(pool, tenant, KEY)
    answer = await caller.start(PIPELINE, {"n": 1}, tenant=tenant, key=KEY)
    after = await get_key(pool, tenant, KEY)
    assert between is not None
    assert after is not None
    assert between.status is (KeyStatus.FAILED if point == "settled" else KeyStatus.PROCESSING)
    assert (answer.is_cached, answer.status, after.status) == (True, RunStatus.FAILED, KeyStatus.FAILED)


@contextlib.asynccontextmanager
async def dying_worker(settings: Settings, point: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker that dies where it writes the row of the run."""
    root = Path(__file__).parents[3]
    environment = {
        **os.environ,
        "TEMPORAL_ADDRESS": settings.temporal_address or "",
        "DATABASE_URL": database_url(settings),
        "REDRIVE_TASK_QUEUE": settings.task_queue,
        "REDRIVE_MODULES": "tests.chaos.key_modules",
        "REDRIVE_STATE_DIR": str(settings.state_dir),
        "REDRIVE_LOG_LEVEL": "error",
        "PYTHONPATH": str(root),
    }
    words = (sys.executable, "-m", "tests.chaos.key_worker", point)
    process = await asyncio.create_subprocess_exec(*words, cwd=root, env=environment)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_worker_that_dies_at_the_end_of_a_run_leaves_a_key_that_answers(
    *, worker: WorkerFactory, caller: Redrive, settings: Settings, pool: Pool, tenant: str
) -> None:
    """Before or after the row is written: the run ends once, and the key has its result."""

    async def end(point: str, key: str) -> None:
        queue = settings.model_copy(update={"task_queue": f"{settings.task_queue}-{point}"})
        redrive = Redrive(caller._client, task_queue=queue.task_queue, registry=keyed_registry(), claims=caller._claims)
        started = await redrive.start(PIPELINE, {"n": 1}, tenant=tenant, key=key)
        async with dying_worker(queue, point) as process:
            assert await asyncio.wait_for(process.wait(), 60) == KILLED
        between = await get_key(pool, tenant, key)
        async with worker(task_queue=queue.task_queue):
            await redrive.result(started.run_id)
        answer = await redrive.start(PIPELINE, {"n": 1}, tenant=tenant, key=key)
        assert between is not None
        assert between.status is (KeyStatus.COMPLETED if point == "after_row" else KeyStatus.PROCESSING)
        assert (answer.run_id, answer.is_cached, answer.response) == (run_id_for_key(tenant, key), True, {"n": 2})

    # Side by side: each waits until Temporal misses the dead worker.
    await asyncio.gather(end("before_row", "one"), end("after_row", "other"))
