"""Canceling a run: in a step, in a wait, between steps, too late."""

import asyncio
import time
from datetime import timedelta

import pytest

from redrive import (
    InvalidInput,
    ModuleContext,
    Pipeline,
    Registry,
    RunCanceled,
    RunStatus,
    RunView,
    StepStatus,
    Transient,
)
from redrive.settings import Settings
from tests.conftest import WorkerFactory, eventually
from tests.integration.keys.test_away import locked_tables
from tests.integration.runs.samples import Number, add_good_pipeline, ended, quick, run_until_settled

CANCEL_REACHES_A_STEP_WITHIN = 6.0


class Slow:
    """A pipeline `p` of a step that hangs and one that must not start."""

    def __init__(self, registry: Registry) -> None:
        self.running = asyncio.Event()
        self.canceled_at: float | None = None
        self.later_started = False

        @registry.module("slow")
        async def slow(ctx: ModuleContext, given: Number) -> Number:
            self.running.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.canceled_at = time.monotonic()
                raise
            return given

        @registry.module("later")
        async def later(ctx: ModuleContext, given: Number) -> Number:
            self.later_started = True
            return given

        Pipeline("p", slow, later, registry=registry)


async def test_cancel_interrupts_the_running_step(worker: WorkerFactory, registry: Registry) -> None:
    """The module is cancelled within a heartbeat or two, the run ends CANCELED and tells the reason."""
    slow = Slow(registry)
    async with worker() as running:
        started = await running.redrive.start("p", {})
        await asyncio.wait_for(slow.running.wait(), 45)
        asked = time.monotonic()
        await running.redrive.cancel(started.run_id, reason="the customer changed her mind")
        with pytest.raises(RunCanceled, match=started.run_id):
            await running.redrive.result(started.run_id)
        view = await running.redrive.status(started.run_id)
    assert slow.canceled_at is not None
    assert slow.canceled_at - asked < CANCEL_REACHES_A_STEP_WITHIN
    assert not slow.later_started
    assert (view.status, view.error) == (RunStatus.CANCELED, "the customer changed her mind")
    assert [step.status for step in view.steps] == [StepStatus.SKIPPED, StepStatus.SKIPPED]


async def test_a_canceled_run_is_listed_as_such(worker: WorkerFactory, registry: Registry) -> None:
    """The list of CANCELED runs shows it."""
    slow = Slow(registry)
    async with worker() as running:
        tenant = running.settings.task_queue
        started = await running.redrive.start("p", {}, tenant=tenant)
        await asyncio.wait_for(slow.running.wait(), 45)
        await running.redrive.cancel(started.run_id, reason="no")

        async def canceled() -> list[str]:
            rows = running.redrive.list_runs(tenant=tenant, status=RunStatus.CANCELED)
            return [row.run_id async for row in rows]

        assert await eventually(canceled) == [started.run_id]


async def test_cancel_ends_a_wait_for_a_retry_at_once(worker: WorkerFactory, registry: Registry) -> None:
    """A run that waits a minute for its next try is CANCELED without waiting, and keeps its attempt."""
    calls = 0

    @registry.module("failing", policy=quick(base=timedelta(seconds=60), cap=timedelta(seconds=60)))
    async def failing(ctx: ModuleContext, given: Number) -> Number:
        nonlocal calls
        calls += 1
        raise Transient("later")

    Pipeline("p", failing, registry=registry)
    async with worker() as running:
        started = await running.redrive.start("p", {})

        async def retrying() -> bool:
            view = await running.redrive.status(started.run_id)
            return any(step.status is StepStatus.RETRYING for step in view.steps)

        await eventually(retrying)
        asked = time.monotonic()
        await running.redrive.cancel(started.run_id, reason="no")
        view = await ended(running.redrive, started.run_id)
    assert time.monotonic() - asked < 30
    assert calls == 1
    assert view.status is RunStatus.CANCELED


@pytest.mark.parametrize("lead", [-0.02, 0.0, 0.005, 0.02])
async def test_a_cancel_that_meets_a_steps_completion_is_not_lost(
    worker: WorkerFactory, registry: Registry, lead: float
) -> None:
    """Whether it comes just before, with or just after the completion of a step, the run ends CANCELED."""
    first_running, release = asyncio.Event(), asyncio.Event()

    @registry.module("first")
    async def first(ctx: ModuleContext, given: Number) -> Number:
        first_running.set()
        await release.wait()
        return given

    @registry.module("second")
    async def second(ctx: ModuleContext, given: Number) -> Number:
        await asyncio.Event().wait()
        return given

    Pipeline("p", first, second, registry=registry)

    async def let_go(after: float) -> None:
        await asyncio.sleep(after)
        release.set()

    async with worker() as running:
        started = await running.redrive.start("p", {})
        await asyncio.wait_for(first_running.wait(), 45)
        letting_go = asyncio.create_task(let_go(max(lead, 0)))
        await asyncio.sleep(max(-lead, 0))
        await running.redrive.cancel(started.run_id, reason="now")
        await letting_go
        view = await asyncio.wait_for(ended(running.redrive, started.run_id), 45)
    assert view.status is RunStatus.CANCELED
    assert view.steps[1].status is StepStatus.SKIPPED


async def test_a_cancel_before_a_worker_sees_the_run_is_not_lost(worker: WorkerFactory, registry: Registry) -> None:
    """A run that was canceled while no worker was alive runs no step."""
    slow = Slow(registry)
    async with worker() as running:
        redrive = running.redrive
    started = await redrive.start("p", {})
    await redrive.cancel(started.run_id, reason="never mind")
    async with worker():
        view = await asyncio.wait_for(ended(redrive, started.run_id), 45)
    assert view.status is RunStatus.CANCELED
    assert not slow.running.is_set()


async def test_an_ended_run_cannot_be_canceled(worker: WorkerFactory, registry: Registry) -> None:
    """A cancel that comes too late is refused with a sentence, and the run stays what it was."""
    add_good_pipeline(registry)
    async with worker() as running:
        view = await run_until_settled(running.redrive, "good")
        with pytest.raises(InvalidInput, match="has ended already"):
            await running.redrive.cancel(view.run_id, reason="too late")
        again = await running.redrive.status(view.run_id)
    assert again.status is RunStatus.SUCCESS


async def test_a_run_that_reports_its_end_has_not_ended(
    worker: WorkerFactory, registry: Registry, settings: Settings
) -> None:
    """While its row waits for the database, nobody is told an outcome that Temporal does not have."""
    add_good_pipeline(registry)
    async with worker() as running, locked_tables(settings):
        started = await running.redrive.start("good", {})

        async def told() -> RunView | None:
            view = await running.redrive.status(started.run_id)
            return view if view.status.closed else None

        view = await eventually(told)
        described = await running.temporal.get_workflow_handle(started.run_id).describe()
    assert (view.status, view.closed_at) == (RunStatus.SUCCESS, described.close_time)
    assert described.close_time is not None
