"""A program with its own worker: the runs that it starts begin in it, and go to other workers if they cannot."""

import asyncio
import uuid

from temporalio.client import Client

from redrive import Redrive, Registry, RunStatus
from redrive.settings import Settings
from redrive.worker import own_worker
from tests.conftest import WorkerFactory
from tests.integration.runs.samples import add_good_pipeline
from tests.integration.runs.test_fast_steps import add_counters

MANY = 150


async def began_here(temporal: Client, run_id: str) -> bool:
    """Tell whether the first workflow task was in the answer to the start."""
    async for event in temporal.get_workflow_handle(run_id).fetch_history_events(page_size=1):
        return event.workflow_execution_started_event_attributes.eager_execution_accepted
    raise AssertionError("a run without events")


async def test_runs_begin_in_the_process_that_starts_them(
    settings: Settings, registry: Registry, temporal: Client
) -> None:
    """With a key and without one; a client of another process starts them as ever."""
    add_counters(registry, True, True, False)
    key = uuid.uuid4().hex
    async with own_worker(settings, registry) as redrive:
        own = await redrive.start("p", {"n": 1})
        keyed = await redrive.start("p", {"n": 1}, key=key)
        foreign = await Redrive(temporal, task_queue=settings.task_queue, registry=Registry()).start("p", {"n": 1})
        results = [await redrive.result(run.run_id) for run in (own, keyed, foreign)]
        again = await redrive.start("p", {"n": 1}, key=key)
    assert [result.output for result in results] == [{"n": 2}] * 3
    assert [await began_here(temporal, run.run_id) for run in (own, keyed, foreign)] == [True, True, False]
    assert (again.run_id, again.is_cached, again.status) == (keyed.run_id, True, RunStatus.SUCCESS)


async def test_a_burst_beyond_the_worker_s_room_loses_none(settings: Settings, registry: Registry) -> None:
    """What does not begin here waits in the task queue."""
    add_counters(registry, True, True)
    few = settings.model_copy(update={"max_concurrent_steps": 4})
    async with own_worker(few, registry) as redrive:
        started = await asyncio.gather(*(redrive.start("p", {"n": number}) for number in range(MANY)))
        results = await asyncio.gather(*(redrive.result(run.run_id) for run in started))
    assert len({run.run_id for run in started}) == MANY
    assert {result.status for result in results} == {RunStatus.SUCCESS}


async def test_temporal_chooses_the_version_of_a_deployment_s_runs(
    settings: Settings, registry: Registry, temporal: Client
) -> None:
    """A build that is not the current version must not begin runs."""
    add_good_pipeline(registry)
    deployed = settings.model_copy(update={"deployment": f"shop-{uuid.uuid4().hex[:8]}", "build_id": "one"})
    async with own_worker(deployed, registry) as redrive:
        run_id = (await redrive.start("good", {"n": 1})).run_id
        assert not await began_here(temporal, run_id)


async def test_another_worker_goes_on_when_the_program_has_ended(
    settings: Settings, registry: Registry, worker: WorkerFactory
) -> None:
    """A run that is parked or between steps then is as any other."""
    add_counters(registry, True, False)
    async with own_worker(settings, registry) as redrive:
        run_id = (await redrive.start("p", {"n": 1})).run_id
    async with worker() as running:
        result = await running.redrive.result(run_id)
    assert result.status is RunStatus.SUCCESS
