"""Two tenants on one worker: neither the backlog nor the slow steps of one stand in the way of the other."""

import asyncio
import functools

import pytest
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

from redrive import ModuleContext, Pipeline, Registry, RunStatus, Transient
from redrive.categories import Category
from redrive.fairness import keep_weights, overflow_queue
from redrive.settings import Settings
from tests.conftest import Running, WorkerFactory, eventually
from tests.integration.runs.samples import Number, milliseconds, quick


class Stage:
    """Pipelines whose steps wait until they are let go, pass, or fail once; and the tenants in the order of steps."""

    def __init__(self, registry: Registry) -> None:
        self.open = asyncio.Event()
        self.fail = asyncio.Event()
        self.began: list[str] = []
        self.running = self.most = 0

        @registry.module("wait", policy=quick(timeout=120))
        async def wait(ctx: ModuleContext, given: Number) -> Number:
            self.began.append(ctx.tenant)
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await self.open.wait()
            finally:
                self.running -= 1
            return given

        @registry.module("pass", policy=quick())
        async def passing(ctx: ModuleContext, given: Number) -> Number:
            self.began.append(ctx.tenant)
            return given

        @registry.module(
            "fail-once", policy=quick(timeout=120, base=milliseconds(1000), deadline=milliseconds(300_000))
        )
        async def fail_once(ctx: ModuleContext, given: Number) -> Number:
            await self.fail.wait()
            if ctx.attempt == 1:
                raise Transient("once", category=Category.NETWORK)
            return given

        Pipeline("slow", wait, registry=registry)
        Pipeline("quick", passing, registry=registry)
        Pipeline("flaky", fail_once, registry=registry)

    async def is_running(self, steps: int) -> None:
        """Wait until so many steps wait to be let go."""
        await eventually(lambda: asyncio.sleep(0, self.running >= steps))


@pytest.fixture
def stage(registry: Registry) -> Stage:
    """Steps that wait, pass and fail."""
    return Stage(registry)


async def start(running: Running, pipeline: str, tenant: str, count: int = 1) -> list[str]:
    """Start runs, and return their ids when each has a step that waits or runs."""
    runs = [(await running.redrive.start(pipeline, {}, tenant=tenant)).run_id for _ in range(count)]
    for run_id in runs:
        await eventually(functools.partial(_queues, running.temporal, run_id))
    return runs


async def _queues(temporal: Client, run_id: str) -> list[str]:
    """Return the queues that the run's steps were put into."""
    history = await temporal.get_workflow_handle(run_id).fetch_history()
    return [
        event.activity_task_scheduled_event_attributes.task_queue.name
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]


async def test_slow_steps_of_one_tenant_leave_a_slot_for_another(worker: WorkerFactory, stage: Stage) -> None:
    """While the first tenant's 25 steps fill a worker with four slots, and none ends, runs of the second succeed."""
    async with worker(max_concurrent_steps=4) as running:
        noisy = await start(running, "slow", "noisy", 25)
        await stage.is_running(3)
        for _ in range(3):
            quiet = await running.redrive.start("quick", {}, tenant="quiet")
            result = await asyncio.wait_for(running.redrive.result(quiet.run_id), 30)
            assert result.status is RunStatus.SUCCESS
        stage.open.set()
        for run_id in noisy:
            assert (await running.redrive.result(run_id)).status is RunStatus.SUCCESS
        assert stage.began.count("noisy") == 25
        # The limit of a worker holds, also for steps that came by the overflow queue.
        assert stage.most <= 4


async def test_a_retry_that_finds_no_slot_keeps_its_attempts(worker: WorkerFactory, stage: Stage) -> None:
    """Its slot was taken meanwhile: it waits in the overflow queue, and goes on with the second attempt there."""
    async with worker(max_concurrent_steps=3) as running:
        [flaky] = await start(running, "flaky", "noisy")
        others = await start(running, "slow", "noisy", 6)
        await stage.is_running(1)
        stage.fail.set()
        await stage.is_running(2)
        overflow = overflow_queue(running.settings.task_queue)

        async def moved() -> bool:
            return overflow in await _queues(running.temporal, flaky)

        await eventually(moved)
        stage.open.set()
        [step] = (await running.redrive.result(flaky)).steps
        assert (step.attempt, [entry.attempt for entry in step.attempts]) == (2, [1])
        for run_id in others:
            await running.redrive.result(run_id)


@pytest.mark.parametrize(("weights", "fewest", "most"), [({}, 3, 5), ({"quiet": 4.0}, 6, 8)], ids=["equal", "weighted"])
async def test_a_backlog_is_worked_off_by_turns(
    *, worker: WorkerFactory, stage: Stage, weights: dict[str, float], fewest: int, most: int
) -> None:
    """Of the first eight steps after a stop, as many are the second tenant's as its weight says."""
    async with worker(max_concurrent_steps=1) as running:
        await keep_weights(running.temporal, running.settings.task_queue, weights)
        held = await start(running, "slow", "noisy")
        await stage.is_running(1)
        runs = await start(running, "quick", "noisy", 16)
        runs += await start(running, "quick", "quiet", 8)
        stage.open.set()
        for run_id in held + runs:
            await running.redrive.result(run_id)
        # The client may have one of the first tenant's in hand already.
        first = stage.began[2:10]
        assert fewest <= first.count("quiet") <= most


async def test_weights_are_those_of_the_settings(temporal: Client, settings: Settings) -> None:
    """A tenant that is no longer named has one turn again, in both queues of a worker."""
    await keep_weights(temporal, settings.task_queue, {"acme": 2.0, "beta": 0.5})
    await keep_weights(temporal, settings.task_queue, {"acme": 3.0})
    for queue in (settings.task_queue, overflow_queue(settings.task_queue)):
        answer = await temporal.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=temporal.namespace,
                task_queue=TaskQueue(name=queue),
                task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
                report_config=True,
            )
        )
        assert dict(answer.config.fairness_weight_overrides) == {"acme": 3.0}
