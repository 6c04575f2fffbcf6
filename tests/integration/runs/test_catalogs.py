"""Starts by callers without the modules' code, with what workers have published and without it."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest
from pydantic import BaseModel, Field, model_validator
from temporalio.client import Client

from redrive import InvalidInput, ModuleContext, Pipeline, Redrive, Registry, RunFailed, RunStatus
from redrive.errors import UnknownPipeline
from redrive.postgres.database import DeadlinePool
from redrive.published_catalogs import PublishedCatalogs
from redrive.settings import Settings
from redrive.starter.stack.state import StackInfo
from redrive.worker import running_worker
from tests.conftest import WorkerFactory, eventually, owner_url
from tests.integration.runs.catalogs import new_caller, publish
from tests.integration.runs.samples import Number, add_good_pipeline

LONGEST = timedelta(seconds=3)
REFUSED = [
    ("goood", {}, UnknownPipeline, "pipeline 'goood' is not known here; known: good"),
    (
        "good",
        {"n": "many"},
        InvalidInput,
        "payload does not fit 'good': n: Input should be a valid integer, unable to parse string as an integer "
        "(got 'many')",
    ),
    (
        "good",
        {"good": 1},
        InvalidInput,
        "payload.good: the name belongs to a step, whose output stands there; rename the field",
    ),
]
IDS = ["unknown pipeline", "does not fit", "name of a step"]


class Larger(BaseModel):
    """What a newer build of `good` takes."""

    n: int | str = 0
    note: str = ""


class Even(BaseModel):
    """An input with a check that is code."""

    n: int = Field(ge=0)

    @model_validator(mode="after")
    def _is_even(self) -> "Even":
        if self.n % 2:
            raise ValueError("n is odd")
        return self


def add_newer_pipeline(registry: Registry) -> None:
    """Register `good` as a newer build has it, and another pipeline."""

    @registry.module("good")
    async def good(ctx: ModuleContext, given: Larger) -> Number:
        return Number(n=0)

    Pipeline("good", good, registry=registry)
    Pipeline("better", good, registry=registry)


@pytest.fixture
async def caller(settings: Settings, temporal: Client) -> AsyncIterator[Redrive]:
    """A client with a database and none of the modules' code."""
    async with new_caller(settings, temporal) as redrive:
        yield redrive


async def runs_of(temporal: Client, settings: Settings) -> int:
    """Count all workflows of the test's task queue."""
    return (await temporal.count_workflows(f"TaskQueue = '{settings.task_queue}'")).count


@pytest.mark.parametrize(("pipeline", "payload", "error", "sentence"), REFUSED, ids=IDS)
async def test_with_a_catalog_a_start_that_cannot_run_is_refused_at_once(
    *,
    caller: Redrive,
    worker: WorkerFactory,
    registry: Registry,
    settings: Settings,
    temporal: Client,
    pipeline: str,
    payload: dict[str, object],
    error: type[InvalidInput],
    sentence: str,
) -> None:
    """The refusal needs no worker: the last one is gone. No run exists, and the key is still free."""
    add_good_pipeline(registry)
    key = uuid.uuid4().hex
    async with worker():
        pass
    for chosen in (None, key):
        with pytest.raises(error) as refused:
            await caller.start(pipeline, payload, key=chosen)
        assert str(refused.value) == sentence
    assert await runs_of(temporal, settings) == 0
    started = await caller.start("good", {}, key=key)
    assert not started.is_cached
    async with worker():
        assert (await caller.result(started.run_id)).status is RunStatus.SUCCESS


@pytest.mark.parametrize(("pipeline", "payload", "error", "sentence"), REFUSED, ids=IDS)
async def test_without_a_catalog_the_run_fails_with_the_same_sentence(
    *,
    worker: WorkerFactory,
    registry: Registry,
    pipeline: str,
    payload: dict[str, object],
    error: type[InvalidInput],
    sentence: str,
) -> None:
    """A client without a database starts by name; the run checks, and its status says why it failed."""
    add_good_pipeline(registry)
    async with worker() as running:
        client = Redrive(running.temporal, task_queue=running.settings.task_queue, registry=Registry())
        started = await client.start(pipeline, payload)
        with pytest.raises(RunFailed) as failed:
            await client.result(started.run_id)
        view = await client.status(started.run_id)
    assert str(failed.value) == f"run {started.run_id!r} failed: {sentence}"
    assert (view.status, view.error) == (RunStatus.FAILED, sentence)


async def test_what_only_code_refuses_fails_as_a_run(
    caller: Redrive, worker: WorkerFactory, registry: Registry
) -> None:
    """Rules are published, code is not: what the rules refuse is refused at once, the rest by the run."""

    @registry.module("even")
    async def even(ctx: ModuleContext, given: Even) -> Number:
        return Number(n=given.n)

    Pipeline("even", even, registry=registry)
    async with worker():
        with pytest.raises(InvalidInput, match="n: Input should be greater than or equal to 0"):
            await caller.start("even", {"n": -1})
        started = await caller.start("even", {"n": 3})
        with pytest.raises(RunFailed, match=r"payload does not fit 'even': .*n is odd"):
            await caller.result(started.run_id)
        fits = await caller.start("even", {"n": "4"})
        assert (await caller.result(fits.run_id)).output == {"n": 4}


async def test_a_stale_catalog_refuses_nothing_that_a_newer_worker_takes(
    caller: Redrive, worker: WorkerFactory, registry: Registry, settings: Settings
) -> None:
    """A client that knows an old catalog reads it again before it refuses."""
    add_good_pipeline(registry)
    async with worker():
        with pytest.raises(InvalidInput):
            await caller.start("good", {"n": "many"})
    newer = Registry()
    add_newer_pipeline(newer)
    async with running_worker(settings.model_copy(update={"build_id": "newer"}), newer):
        for pipeline in ("good", "better"):
            started = await caller.start(pipeline, {"n": "many"})
            assert (await caller.result(started.run_id)).status is RunStatus.SUCCESS
        catalog = await caller.catalog()
    assert (catalog.build_id, [each.name for each in catalog.pipelines]) == ("newer", ["better", "good"])


async def test_what_one_of_several_builds_takes_is_started(
    caller: Redrive, registry: Registry, settings: Settings, temporal: Client
) -> None:
    """While a release rolls out, either build may get the run; what both refuse is refused, and all pipelines named."""
    newer = Registry()
    add_good_pipeline(registry)
    add_newer_pipeline(newer)
    await publish(settings, temporal, newer, "newer")
    await publish(settings, temporal, registry, "older")
    await caller.start("good", {"n": "many"})
    await caller.start("better", {"n": "many"})
    with pytest.raises(InvalidInput, match="payload does not fit 'good': n: "):
        await caller.start("good", {"n": []})
    with pytest.raises(UnknownPipeline, match=r"'best' is not known here; known: better, good$"):
        await caller.start("best", {})

    async def both_listed() -> bool:
        return await runs_of(temporal, settings) == 2

    await eventually(both_listed)


async def test_a_catalog_that_cannot_be_read_refuses_nothing(
    caller: Redrive, registry: Registry, settings: Settings, temporal: Client, stack: StackInfo
) -> None:
    """A build of another release may take anything: in doubt, the run is started."""
    add_good_pipeline(registry)
    await publish(settings, temporal, registry, "older")
    owner = await asyncpg.connect(owner_url(stack))
    try:
        await owner.execute(
            "INSERT INTO redrive.catalogs (namespace, task_queue, build_id, digest, document) "
            "VALUES ($1, $2, 'other', 'd', '{\"version\": 2}')",
            temporal.namespace,
            settings.task_queue,
        )
    finally:
        await owner.close()
    assert (await caller.start("good", {"n": "many"})).status is RunStatus.RUNNING
    assert [module.name for module in (await caller.catalog()).modules] == ["good"]


async def test_builds_that_are_long_gone_do_not_count(
    caller: Redrive, registry: Registry, settings: Settings, temporal: Client, stack: StackInfo
) -> None:
    """A build that was not seen for minutes while others were is replaced; the last one is kept without any worker."""
    newer = Registry()
    add_good_pipeline(registry)
    add_newer_pipeline(newer)
    await publish(settings, temporal, newer, "newer")
    owner = await asyncpg.connect(owner_url(stack))
    try:
        await owner.execute(
            "UPDATE redrive.catalogs SET seen_at = now() - interval '6 minutes' WHERE task_queue = $1",
            settings.task_queue,
        )
    finally:
        await owner.close()
    await caller.start("better", {})
    await publish(settings, temporal, registry, "older")
    async with new_caller(settings, temporal) as fresh:
        with pytest.raises(UnknownPipeline, match=r"known: good$"):
            await fresh.start("better", {})


async def test_a_start_without_any_worker_waits_and_runs_when_one_comes(
    caller: Redrive, worker: WorkerFactory, registry: Registry
) -> None:
    """Temporal keeps the run; neither the start nor the status needs a worker."""
    add_good_pipeline(registry)
    began = time.monotonic()
    started = await caller.start("good", {"n": 1}, key=uuid.uuid4().hex)
    assert time.monotonic() - began < LONGEST.total_seconds()
    assert not await caller.has_worker()
    async with worker():
        result = await caller.result(started.run_id)
        assert await caller.has_worker()
    assert result.output == {"n": 2}


async def test_a_catalog_in_a_database_that_is_down_is_not_known(
    worker: WorkerFactory, registry: Registry, temporal: Client, settings: Settings
) -> None:
    """Then a start goes by name, and the modules are asked for from a worker."""
    add_good_pipeline(registry)
    catalogs = PublishedCatalogs(
        DeadlinePool("postgresql://nobody:x@127.0.0.1:1/none", 1), temporal.namespace, settings.task_queue
    )
    client = Redrive(temporal, task_queue=settings.task_queue, registry=Registry(), catalogs=catalogs)
    async with worker():
        started = await client.start("good", {"n": "many"})
        with pytest.raises(RunFailed, match="payload does not fit 'good'"):
            await client.result(started.run_id)
        assert [module.name for module in (await client.catalog()).modules] == ["good"]


async def test_a_burst_of_starts_waits_for_its_turn(
    caller: Redrive, registry: Registry, settings: Settings, temporal: Client
) -> None:
    """500 starts at once from a process without the code, half of them with keys: no error, 500 runs."""
    add_good_pipeline(registry)
    await publish(settings, temporal, registry, "build")
    keys = [None, uuid.uuid4().hex]
    started = await asyncio.gather(
        *(caller.start("good", {"n": n}, key=key and f"{key}:{n}") for n in range(250) for key in keys)
    )
    assert not any(each.is_cached for each in started)
    assert len({each.run_id for each in started}) == 500
