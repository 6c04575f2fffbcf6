"""When steps began and ended, as a run tells it."""

import asyncio
from datetime import datetime

from redrive import ModuleContext, Pipeline, Registry, RunStatus, RunView, StepStatus, Terminal, Transient
from redrive.contracts import StepState
from redrive.dead_letters import LetterId
from tests.conftest import WorkerFactory, eventually
from tests.integration.runs.samples import Number, add_good_pipeline, ended, quick, settled

ModuleError = Terminal | Transient | None


def add_two_steps(registry: Registry, errors: list[ModuleError]) -> None:
    """Register a pipeline `p`: a step that raises these errors, one at each call, and then one that always works."""

    @registry.module("first", policy=quick(base=0.3, factor=1))
    async def first(ctx: ModuleContext, given: Number) -> Number:
        error = errors.pop(0) if errors else None
        if error is not None:
            raise error
        return given

    add_good_pipeline(registry)
    Pipeline("p", first, registry.modules["good"], registry=registry)


def times(step: StepState) -> tuple[datetime, datetime]:
    """Return when a step began and ended, which must be known."""
    assert step.started_at
    assert step.finished_at
    return step.started_at, step.finished_at


async def test_steps_began_and_ended_one_after_the_other(worker: WorkerFactory, registry: Registry) -> None:
    """A step's time is that of all its attempts, with their waits; the times lie within the run's."""
    add_two_steps(registry, [Transient("once"), Transient("twice")])
    async with worker() as running:
        started = await running.redrive.start("p", {})
        view = await ended(running.redrive, started.run_id)
    assert view.started_at
    assert view.closed_at
    moments = [view.started_at, *times(view.steps[0]), *times(view.steps[1]), view.closed_at]
    assert moments == sorted(moments)
    assert (moments[2] - moments[1]).total_seconds() >= 0.6


async def test_a_step_that_waits_has_no_end_yet(worker: WorkerFactory, registry: Registry) -> None:
    """While it is tried again it has begun and not ended; the step after it has neither time."""
    add_two_steps(registry, [Transient("once")])
    async with worker() as running:
        started = await running.redrive.start("p", {})

        async def retrying() -> RunView | None:
            view = await running.redrive.status(started.run_id)
            return view if view.steps and view.steps[0].status is StepStatus.RETRYING else None

        first, second = (await eventually(retrying)).steps
        await running.redrive.result(started.run_id)
    assert first.started_at is not None
    assert (first.finished_at, second.started_at, second.finished_at) == (None, None, None)


async def test_a_replayed_step_has_the_times_of_its_new_cycle(worker: WorkerFactory, registry: Registry) -> None:
    """A dead step ended when it was exhausted, not when the run went on; its replay begins after that."""
    add_two_steps(registry, [Terminal("no")])
    async with worker() as running:
        started = await running.redrive.start("p", {})
        parked = await settled(running.redrive, started.run_id)
        letter = LetterId(tenant=parked.tenant, run_id=parked.run_id, step="first")

        async def accepted() -> bool:
            return (await running.redrive.dead_letters.replay(letter, requested_by="ada", reason="mended")).accepted

        await eventually(accepted)
        view = await ended(running.redrive, started.run_id)
    assert (parked.status, view.status) == (RunStatus.DLQ_PENDING, RunStatus.SUCCESS)
    assert times(parked.steps[0])[1] < times(view.steps[0])[0]


async def test_a_canceled_step_ended_with_its_run(worker: WorkerFactory, registry: Registry) -> None:
    """The step that was interrupted has an end; the one after it never began."""
    begun = asyncio.Event()

    @registry.module("hanging", policy=quick())
    async def hanging(ctx: ModuleContext, given: Number) -> Number:
        begun.set()
        await asyncio.Event().wait()
        return given

    add_good_pipeline(registry)
    Pipeline("p", hanging, registry.modules["good"], registry=registry)
    async with worker() as running:
        started = await running.redrive.start("p", {})
        await begun.wait()
        await running.redrive.cancel(started.run_id, reason="test")
        view = await ended(running.redrive, started.run_id)
    assert view.status is RunStatus.CANCELED
    assert times(view.steps[0])[1] > times(view.steps[0])[0]
    assert view.steps[1].started_at is None
