"""Fast steps: their first attempt runs inside the workflow task, and everything else is as with ordinary steps."""

import asyncio
import time
import uuid
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import structlog
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from redrive import (
    Category,
    ModuleContext,
    Pipeline,
    Redrive,
    Registry,
    RetryPolicy,
    RunCanceled,
    RunStatus,
    StepStatus,
    Terminal,
    Transient,
)
from redrive.activities.fast_attempts import check_may_be_fast
from redrive.contracts import Attempt, RunView, StepInput
from redrive.dead_letters import LetterId
from redrive.fairness import overflow_queue
from tests.conftest import Running, WorkerFactory, eventually
from tests.integration.runs.samples import Blob, Number, milliseconds, quick, run_until_settled, settled

SECONDS = 4
BOTH = pytest.mark.parametrize("fast", [True, False], ids=["fast", "ordinary"])


def brief(**changes: Any) -> RetryPolicy:
    """Return a policy that a fast step may have, with short, exact delays."""
    return quick(timeout=SECONDS, **changes)


def add_counters(registry: Registry, *kinds: bool, name: str = "p") -> None:
    """Register a pipeline of steps that count, each fast or not."""
    modules = []
    for number, fast in enumerate(kinds, 1):

        @registry.module(f"count-{number}", policy=brief(), fast=fast)
        async def count(ctx: ModuleContext, given: Number) -> Number:
            return Number(n=given.n + 1)

        modules.append(count)
    Pipeline(name, *modules, registry=registry)


class Flaky:
    """A pipeline `p` of one step that fails as it is told, and remembers its attempts."""

    def __init__(self, registry: Registry, *errors: Exception, fast: bool = True, **policy: Any) -> None:
        self.seen: list[int] = []
        self.times: list[float] = []

        @registry.module("flaky", policy=brief(**policy), fast=fast)
        async def flaky(ctx: ModuleContext, given: Number) -> Number:
            self.seen.append(ctx.attempt)
            self.times.append(time.monotonic())
            if len(self.seen) <= len(errors):
                raise errors[len(self.seen) - 1]
            return Number(n=given.n + 1)

        Pipeline("p", flaky, registry=registry)


async def events(temporal: Client, run_id: str) -> list[HistoryEvent]:
    """Return a run's history."""
    return list((await temporal.get_workflow_handle(run_id).fetch_history()).events)


async def counted(running: Running, run_id: str) -> Counter[str]:
    """Return how many events of each kind a run's history has."""
    found = await events(running.temporal, run_id)
    return Counter(EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in found)


@pytest.mark.parametrize("by_name", [False, True], ids=["by the code", "by name"])
async def test_fast_steps_and_the_end_are_one_workflow_task(
    *, worker: WorkerFactory, registry: Registry, temporal: Client, by_name: bool
) -> None:
    """Three fast steps cost eight events, and one more if the run has to find its steps; each shows its name."""
    add_counters(registry, True, True, True)
    async with worker() as running:
        caller = Redrive(temporal, task_queue=running.settings.task_queue, registry=Registry() if by_name else registry)
        started = await caller.start("p", {"n": 1})
        result = await caller.result(started.run_id)
        found = await events(temporal, started.run_id)
        kinds = await counted(running, started.run_id)
    assert (result.status, result.output) == (RunStatus.SUCCESS, {"n": 2})
    assert kinds == {
        "WORKFLOW_EXECUTION_STARTED": 1,
        "WORKFLOW_TASK_SCHEDULED": 1,
        "WORKFLOW_TASK_STARTED": 1,
        "WORKFLOW_TASK_COMPLETED": 1,
        "MARKER_RECORDED": 3 + by_name,
        "WORKFLOW_EXECUTION_COMPLETED": 1,
    }
    summaries = [event.user_metadata.summary.data for event in found if event.HasField("user_metadata")]
    assert [name for name in summaries if b"count" in name] == [b'"count-1"', b'"count-2"', b'"count-3"']


@pytest.mark.parametrize(
    ("kinds", "tasks"),
    [((True, False, True), 2), ((False, True, True), 2), ((False, False, True), 3), ((True, True, False), 2)],
)
async def test_only_ordinary_steps_end_a_workflow_task(
    worker: WorkerFactory, registry: Registry, kinds: tuple[bool, ...], tasks: int
) -> None:
    """A run has one workflow task more than it has ordinary steps."""
    add_counters(registry, *kinds)
    async with worker() as running:
        started = await running.redrive.start("p", {"n": 1})
        result = await running.redrive.result(started.run_id)
        found = await counted(running, started.run_id)
    assert [step.status for step in result.steps] == [StepStatus.SUCCESS] * 3
    assert (found["WORKFLOW_TASK_COMPLETED"], found["ACTIVITY_TASK_SCHEDULED"]) == (tasks, kinds.count(False))


@BOTH
async def test_attempts_are_the_same_for_fast_and_ordinary_steps(
    worker: WorkerFactory, registry: Registry, *, fast: bool
) -> None:
    """Numbers, delays, log lines, workflow tasks: whether the first attempt is inside the task makes no difference."""
    first, second = Transient("once", category=Category.NETWORK), Transient("twice", retry_after=milliseconds(300))
    flaky = Flaky(registry, first, second, fast=fast, base=milliseconds(200))
    with structlog.testing.capture_logs([structlog.contextvars.merge_contextvars]) as logs:
        async with worker() as running:
            started = await running.redrive.start("p", {"n": 1})
            # Not asked for its status meanwhile: Temporal ends the task to have a query answered.
            (step,) = (await running.redrive.result(started.run_id)).steps
            found = await counted(running, started.run_id)
    assert flaky.seen == [1, 2, 3]
    assert (step.status, step.attempt, step.max_attempts) == (StepStatus.SUCCESS, 3, 4)
    assert [_facts(entry) for entry in step.attempts] == [
        (1, Category.NETWORK, "Transient", "once", milliseconds(200)),
        (2, Category.UNKNOWN, "Transient", "twice", milliseconds(300)),
    ]
    gaps = [later - earlier for earlier, later in zip(flaky.times, flaky.times[1:], strict=False)]
    assert 0.2 <= gaps[0] < 3
    assert 0.3 <= gaps[1] < 3
    said = [
        (line["event"], line["attempt"]) for line in logs if line["event"].startswith("step.") and "attempt" in line
    ]
    assert said == [
        *(("step.started", 1), ("step.failed", 1)),
        *(("step.started", 2), ("step.failed", 2)),
        *(("step.started", 3), ("step.succeeded", 3)),
    ]
    assert (found["WORKFLOW_TASK_COMPLETED"], found["ACTIVITY_TASK_SCHEDULED"], found["TIMER_STARTED"]) == (2, 1, 0)


def _facts(entry: Attempt) -> tuple[int, Category, str, str, timedelta | None]:
    return entry.attempt, entry.category, entry.error_type, entry.error, entry.delay


@BOTH
async def test_a_waiting_step_is_seen_and_can_be_canceled(
    worker: WorkerFactory, registry: Registry, *, fast: bool
) -> None:
    """After the first attempt the step is RETRYING, with its attempt and the time of the next; a cancel ends it."""
    flaky = Flaky(registry, Transient("no"), fast=fast, base=milliseconds(60_000), cap=milliseconds(60_000))
    async with worker() as running:
        started = await running.redrive.start("p", {})

        async def waits() -> RunView | None:
            view = await running.redrive.status(started.run_id)
            return view if view.steps and view.steps[0].status is StepStatus.RETRYING else None

        (step,) = (await eventually(waits)).steps
        await running.redrive.cancel(started.run_id, reason="seen enough")
        with pytest.raises(RunCanceled):
            await running.redrive.result(started.run_id)
    assert (step.attempt, [entry.attempt for entry in step.attempts]) == (1, [1])
    assert step.next_retry_at is not None
    assert timedelta(seconds=50) < step.next_retry_at - step.attempts[0].at < timedelta(seconds=120)
    assert flaky.seen == [1]


@BOTH
@pytest.mark.parametrize(
    ("errors", "attempts"), [([Terminal("never")], 1), ([Transient("no")] * 3, 3)], ids=["terminal", "used up"]
)
async def test_an_exhausted_step_is_a_dead_letter_and_is_replayed(
    *, worker: WorkerFactory, registry: Registry, errors: list[Exception], attempts: int, fast: bool
) -> None:
    """The dead letter has every attempt. The replay is ordinary, with the next cycle's numbers, and the run goes on."""
    flaky = Flaky(registry, *errors, fast=fast, base=milliseconds(10), max_attempts=3)
    async with worker() as running:
        view = await run_until_settled(running.redrive, "p", {"n": 1})
        failure = view.steps[0].failure
        assert failure is not None
        letter = LetterId(tenant=view.tenant, run_id=view.run_id, step="flaky")

        async def replayed() -> bool:
            answer = await running.redrive.dead_letters.replay(letter, requested_by="ada", reason="again")
            return answer.accepted

        await eventually(replayed)
        result = await running.redrive.result(view.run_id)
        found = await counted(running, view.run_id)
    assert [entry.attempt for entry in failure.attempts] == list(range(1, attempts + 1))
    assert (failure.attempts[-1].delay, failure.message) == (None, str(errors[-1]))
    assert (result.steps[0].cycle, result.output) == (2, {"n": 2})
    assert flaky.seen == [*range(1, attempts + 1), 1]
    # A command that comes before the dead letter's record is recorded by an activity, which waits for it.
    assert found["ACTIVITY_TASK_SCHEDULED"] in {2, 3}


@BOTH
async def test_the_time_for_all_attempts_includes_the_first(
    worker: WorkerFactory, registry: Registry, *, fast: bool
) -> None:
    """No attempt is made that could not begin before the policy's deadline."""
    flaky = Flaky(
        registry, *[Transient("no")] * 9, fast=fast, base=milliseconds(400), factor=1, deadline=1, max_attempts=9
    )
    async with worker() as running:
        view = await run_until_settled(running.redrive, "p")
    assert view.status is RunStatus.DLQ_PENDING
    assert flaky.seen in ([1, 2], [1, 2, 3])


async def test_a_cancel_during_fast_steps_leaves_one_truth(worker: WorkerFactory, registry: Registry) -> None:
    """Asked for while the only step runs, the run is canceled: the task that would have ended it is refused."""
    running_now, asked, seen = asyncio.Event(), asyncio.Event(), []

    @registry.module("slow", policy=brief(), fast=True)
    async def slow(ctx: ModuleContext, given: Number) -> Number:
        seen.append(ctx.idempotency_key)
        running_now.set()
        await asked.wait()
        return given

    Pipeline("p", slow, registry=registry)
    async with worker() as running:
        started = await running.redrive.start("p", {})
        await asyncio.wait_for(running_now.wait(), 45)
        await running.redrive.cancel(started.run_id, reason="no")
        asked.set()
        with pytest.raises(RunCanceled):
            await running.redrive.result(started.run_id)
        view = await running.redrive.status(started.run_id)
    assert (view.status, view.steps[0].status) == (RunStatus.CANCELED, StepStatus.SKIPPED)
    assert len(seen) == 1


async def test_a_cancel_during_many_fast_steps_interrupts_one(worker: WorkerFactory, registry: Registry) -> None:
    """It arrives when the workflow task is prolonged: the running step is canceled, the next one does not begin."""
    seen, interrupted = [], []
    modules = []
    for number in range(1, 5):

        @registry.module(f"long-{number}", policy=brief(), fast=True)
        async def long(ctx: ModuleContext, given: Number) -> Number:
            seen.append(ctx.step)
            try:
                await asyncio.sleep(3)
            except asyncio.CancelledError:
                interrupted.append(ctx.step)
                raise
            return given

        modules.append(long)
    Pipeline("p", *modules, registry=registry)
    async with worker() as running:
        started = await running.redrive.start("p", {})
        await eventually(lambda: asyncio.sleep(0, bool(seen)))
        await running.redrive.cancel(started.run_id, reason="no")
        with pytest.raises(RunCanceled):
            await running.redrive.result(started.run_id)
        view = await running.redrive.status(started.run_id)
    assert (seen, interrupted) == (["long-1", "long-2", "long-3"], ["long-3"])
    assert [step.status for step in view.steps] == [StepStatus.SUCCESS] * 2 + [StepStatus.SKIPPED] * 2


async def test_a_signal_during_fast_steps_makes_them_run_again_with_the_same_keys(
    worker: WorkerFactory, registry: Registry
) -> None:
    """Temporal refuses an end that has not seen the signal; the steps run again, and the run succeeds."""
    running_now, signaled, seen = asyncio.Event(), asyncio.Event(), []

    @registry.module("slow", policy=brief(), fast=True)
    async def slow(ctx: ModuleContext, given: Number) -> Number:
        seen.append(ctx.idempotency_key)
        running_now.set()
        await signaled.wait()
        return Number(n=len(seen))

    Pipeline("p", slow, registry=registry)
    async with worker() as running:
        started = await running.redrive.start("p", {})
        await asyncio.wait_for(running_now.wait(), 45)
        await running.temporal.get_workflow_handle(started.run_id).signal("report")
        signaled.set()
        result = await running.redrive.result(started.run_id)
    assert result.output == {"n": 2}
    assert (len(seen), len(set(seen))) == (2, 1)


async def test_a_stored_result_answers_a_fast_step_that_runs_again(worker: WorkerFactory, registry: Registry) -> None:
    """With `dedupe`, a step whose result Temporal never got is not executed a second time."""
    seen: list[str] = []
    second_runs, signaled = asyncio.Event(), asyncio.Event()

    @registry.module("once", policy=brief(), fast=True, dedupe=True)
    async def once(ctx: ModuleContext, given: Number) -> Number:
        seen.append("once")
        return Number(n=len(seen))

    @registry.module("slow", policy=brief(), fast=True)
    async def slow(ctx: ModuleContext, given: Number) -> Number:
        seen.append("slow")
        second_runs.set()
        await signaled.wait()
        return given

    Pipeline("p", once, slow, registry=registry)
    async with worker() as running:
        started = await running.redrive.start("p", {})
        await asyncio.wait_for(second_runs.wait(), 45)
        await running.temporal.get_workflow_handle(started.run_id).signal("report")
        signaled.set()
        await running.redrive.result(started.run_id)
    assert seen == ["once", "slow", "slow"]


async def test_slow_fast_steps_of_one_tenant_leave_room_for_another(worker: WorkerFactory, registry: Registry) -> None:
    """A worker with four slots runs at most four steps; the others wait in the overflow queue, no tenant starves."""
    opened = asyncio.Event()
    now = most = 0

    @registry.module("wait", policy=brief(), fast=True)
    async def wait(ctx: ModuleContext, given: Number) -> Number:
        nonlocal now, most
        now += 1
        most = max(most, now)
        with suppress(TimeoutError):
            await asyncio.wait_for(opened.wait(), SECONDS - 1)
        now -= 1
        return given

    add_counters(registry, True, name="quick")
    Pipeline("slow", wait, registry=registry)
    async with worker(max_concurrent_steps=4) as running:
        noisy = [(await running.redrive.start("slow", {}, tenant="noisy")).run_id for _ in range(12)]
        await eventually(lambda: asyncio.sleep(0, now >= 3))
        quiet = await running.redrive.start("quick", {}, tenant="quiet")
        result = await asyncio.wait_for(running.redrive.result(quiet.run_id), 30)
        assert result.status is RunStatus.SUCCESS
        opened.set()
        queues = set()
        for run_id in noisy:
            assert (await running.redrive.result(run_id)).status is RunStatus.SUCCESS
            for event in await events(running.temporal, run_id):
                if event.HasField("activity_task_scheduled_event_attributes"):
                    queues.add(event.activity_task_scheduled_event_attributes.task_queue.name)
    assert queues == {overflow_queue(running.settings.task_queue)}
    assert most <= 4


async def test_steps_longer_than_a_workflow_task_are_fast(worker: WorkerFactory, registry: Registry) -> None:
    """Fast steps that take longer together than a workflow task are reported in between, and run once each."""
    seen: list[str] = []
    modules = []
    for number in range(1, 5):

        @registry.module(f"long-{number}", policy=brief(), fast=True)
        async def long(ctx: ModuleContext, given: Number) -> Number:
            seen.append(ctx.step)
            await asyncio.sleep(3)
            return given

        modules.append(long)
    Pipeline("p", *modules, registry=registry)
    async with worker() as running:
        view = await run_until_settled(running.redrive, "p")
        found = await counted(running, view.run_id)
    assert view.status is RunStatus.SUCCESS
    assert seen == [f"long-{number}" for number in range(1, 5)]
    assert found["ACTIVITY_TASK_SCHEDULED"] == 0


async def test_large_results_of_fast_steps_fit_into_one_task(worker: WorkerFactory, registry: Registry) -> None:
    """Two results that nearly fill the run's document come back with the last one as the run's output."""

    @registry.module("one", policy=brief(), fast=True)
    async def one(ctx: ModuleContext, given: Number) -> Blob:
        return Blob(data="x" * 900_000)

    @registry.module("two", policy=brief(), fast=True)
    async def two(ctx: ModuleContext, given: Number) -> Blob:
        return Blob(data="y" * 900_000)

    Pipeline("p", one, two, registry=registry)
    async with worker() as running:
        started = await running.redrive.start("p", {})
        result = await running.redrive.result(started.run_id)
    assert result.output == {"data": "y" * 900_000}


async def test_results_that_do_not_fit_are_a_dead_letter(worker: WorkerFactory, registry: Registry) -> None:
    """A fast step whose result makes the run's document too large is dead, once the history has its result."""
    modules = []
    for number in range(1, 4):

        @registry.module(f"blob-{number}", policy=brief(), fast=True)
        async def blob(ctx: ModuleContext, given: Number) -> Blob:
            return Blob(data="x" * 900_000)

        modules.append(blob)
    Pipeline("p", *modules, registry=registry)
    async with worker() as running:
        view = await run_until_settled(running.redrive, "p")
        found = await counted(running, view.run_id)
        letter = LetterId(tenant=view.tenant, run_id=view.run_id, step="blob-3")
        await eventually(lambda: _discarded(running.redrive, letter))
    failure = view.steps[2].failure
    assert failure is not None
    assert failure.category is Category.TOO_LARGE
    assert found["TIMER_STARTED"] == 1


async def _discarded(redrive: Redrive, letter: LetterId) -> bool:
    return (await redrive.dead_letters.discard(letter, requested_by="ada", reason="no use")).accepted


async def test_a_run_that_cannot_be_asked_about_is_not_fast(temporal: Client) -> None:
    """If Temporal does not tell whether the task was tried before, it may have been."""
    step = Registry().module("m", policy=brief(), fast=True)(_pass).snapshot()
    given = StepInput(
        run_id="r", tenant="t", pipeline="p", step=step, document={}, correlation_id="c", maybe_again=True
    )
    with pytest.raises(ApplicationError, match="the workflow task was tried before"):
        await ActivityEnvironment(temporal).run(check_may_be_fast, given)


async def test_a_step_that_claims_to_be_fast_but_may_take_longer_is_ordinary(
    worker: WorkerFactory, registry: Registry
) -> None:
    """A run that somebody starts by hand with such a step does not hold its workflow task."""
    registry.module("long", policy=quick(timeout=60))(_pass)
    step = registry.modules["long"].snapshot(fast=True).model_dump(mode="json")
    async with worker() as running:
        run_id = f"by-hand-{uuid.uuid4().hex}"
        queue = running.settings.task_queue
        given = {"pipeline": "p", "steps": [step]}
        await running.temporal.start_workflow("ModuleRun", given, id=run_id, task_queue=queue)
        view = await settled(running.redrive, run_id)
        found = await counted(running, run_id)
    assert (view.status, found["ACTIVITY_TASK_SCHEDULED"]) == (RunStatus.SUCCESS, 1)


async def _pass(ctx: ModuleContext, given: Number) -> Number:
    return given
