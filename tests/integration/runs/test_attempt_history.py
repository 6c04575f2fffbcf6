"""What `status` tells of a step's attempts: while it waits, after it healed, after it is exhausted."""

import asyncio
from datetime import timedelta

from redrive import Category, ModuleContext, Pipeline, Registry, RunStatus, RunView, StepStatus, Transient
from redrive.contracts import StepState
from tests.conftest import Running, WorkerFactory, eventually
from tests.integration.runs.samples import Number, milliseconds, quick, run_until_settled


def add_failing(registry: Registry, *, base: timedelta, attempts: int, works_at: int = 0) -> None:
    """Register a pipeline `p` of a step that fails, then one that would follow."""

    @registry.module("failing", policy=quick(base=base, cap=base, max_attempts=attempts))
    async def failing(ctx: ModuleContext, given: Number) -> Number:
        if ctx.attempt != works_at:
            raise Transient(f"try {ctx.attempt}", category=Category.NETWORK)
        return given

    @registry.module("later")
    async def later(ctx: ModuleContext, given: Number) -> Number:
        return given

    Pipeline("p", failing, later, registry=registry)


async def waiting(running: Running, run_id: str, attempts: int) -> RunView:
    """Return the run when its first step waits after so many tries."""

    async def ask() -> RunView | None:
        view = await running.redrive.status(run_id)
        first = view.steps[0] if view.steps else StepState(name="")
        return view if first.status is StepStatus.RETRYING and first.attempt == attempts else None

    return await eventually(ask)


async def test_a_waiting_step_tells_its_attempts_and_its_next_try(worker: WorkerFactory, registry: Registry) -> None:
    """During the wait after the first try the step is RETRYING, with that try listed and the next one's time known."""
    add_failing(registry, base=timedelta(seconds=60), attempts=3)
    async with worker() as running:
        started = await running.redrive.start("p", {})
        view = await waiting(running, started.run_id, 1)
        await running.redrive.cancel(started.run_id, reason="seen enough")
    first, later = view.steps
    assert view.status is RunStatus.RUNNING
    assert (first.attempt, first.max_attempts) == (1, 3)
    (entry,) = first.attempts
    assert (entry.attempt, entry.category, entry.error_type) == (1, Category.NETWORK, "Transient")
    assert (entry.error, entry.delay) == ("try 1", timedelta(seconds=60))
    assert first.next_retry_at is not None
    assert timedelta(seconds=50) < first.next_retry_at - entry.at < timedelta(seconds=120)
    assert later.status is StepStatus.PENDING


async def test_attempts_add_up_while_a_step_waits(worker: WorkerFactory, registry: Registry) -> None:
    """The wait after the second try lists both."""
    add_failing(registry, base=milliseconds(800), attempts=9)
    async with worker() as running:
        started = await running.redrive.start("p", {})
        view = await waiting(running, started.run_id, 2)
        await running.redrive.cancel(started.run_id, reason="seen enough")
    assert [entry.error for entry in view.steps[0].attempts] == ["try 1", "try 2"]


async def test_a_running_retry_lists_the_tries_before_it(worker: WorkerFactory, registry: Registry) -> None:
    """While the second try runs, the step is RUNNING at attempt 2 and lists the first."""
    running_now, release = asyncio.Event(), asyncio.Event()

    @registry.module("slow", policy=quick(max_attempts=2, base=milliseconds(1)))
    async def slow(ctx: ModuleContext, given: Number) -> Number:
        if ctx.attempt == 1:
            raise Transient("first")
        running_now.set()
        await release.wait()
        return given

    Pipeline("p", slow, registry=registry)
    async with worker() as running:
        started = await running.redrive.start("p", {})
        await asyncio.wait_for(running_now.wait(), 45)
        view = await running.redrive.status(started.run_id)
        release.set()
        await running.redrive.result(started.run_id)
    (step,) = view.steps
    assert (step.status, step.attempt) == (StepStatus.RUNNING, 2)
    assert [entry.error for entry in step.attempts] == ["first"]
    assert step.next_retry_at is None


async def test_a_healed_step_keeps_its_failed_attempts(worker: WorkerFactory, registry: Registry) -> None:
    """After success the step tells how often it was tried and why it was not the first time."""
    add_failing(registry, base=milliseconds(1), attempts=4, works_at=3)
    async with worker() as running:
        view = await run_until_settled(running.redrive, "p")
    first, later = view.steps
    assert (first.status, first.attempt, first.failure) == (StepStatus.SUCCESS, 3, None)
    assert [entry.error for entry in first.attempts] == ["try 1", "try 2"]
    assert first.output_size == len('{"n":0}')
    assert (later.status, later.attempt, later.attempts) == (StepStatus.SUCCESS, 1, [])


async def test_an_exhausted_step_keeps_every_attempt(worker: WorkerFactory, registry: Registry) -> None:
    """When it is exhausted, the step lists all tries in order, the last without a wait after it."""
    add_failing(registry, base=milliseconds(1), attempts=3)
    async with worker() as running:
        view = await run_until_settled(running.redrive, "p")
    first, later = view.steps
    assert (first.status, first.attempt) == (StepStatus.DLQ, 3)
    assert [entry.error for entry in first.attempts] == ["try 1", "try 2", "try 3"]
    assert [entry.delay for entry in first.attempts] == [milliseconds(1), milliseconds(1), None]
    assert [entry.at for entry in first.attempts] == sorted(entry.at for entry in first.attempts)
    assert first.failure is not None
    assert first.failure.attempts == first.attempts
    assert later.status is StepStatus.PENDING
