"""Runs of many steps and much data: the limits, and continuing as new."""

import json
from datetime import UTC, datetime

import pytest
from pydantic import BaseModel

from redrive import STEP, Category, ModuleContext, Pipeline, Registry, RunStatus, StepStatus
from redrive.contracts import DOCUMENT_LIMIT, STEP_LIMIT, Attempt, RunInput, RunState, StepSnapshot, StepState
from redrive.errors import RegistrationError
from redrive.modules import Module
from tests.conftest import WorkerFactory, eventually
from tests.integration.runs.samples import Blob, Number, ended, run_until_settled


class Source(BaseModel):
    """A part of the document that every step reads again."""

    source: str = ""


def add_steps(registry: Registry, count: int, size: int) -> list[Module[Source, Blob]]:
    """Register modules that each read the payload and return so many bytes."""

    def add(number: int) -> Module[Source, Blob]:
        @registry.module(f"step-{number}")
        async def step(ctx: ModuleContext, given: Source) -> Blob:
            return Blob(data=str(number) * size)

        return step

    return [add(number) for number in range(1, count + 1)]


@pytest.mark.long
async def test_a_run_of_two_hundred_steps_is_allowed(worker: WorkerFactory, registry: Registry) -> None:
    """The largest pipeline there may be runs to its end."""
    Pipeline("p", *add_steps(registry, STEP_LIMIT, 1), registry=registry)
    async with worker() as running:
        started = await running.redrive.start("p", {})
        result = await running.redrive.result(started.run_id)
    assert result.output == {"data": "200"}
    assert {step.status for step in result.steps} == {StepStatus.SUCCESS}
    assert len(result.steps) == STEP_LIMIT


def test_a_pipeline_of_more_steps_is_refused(registry: Registry) -> None:
    """One step more is refused at import, with the count."""
    with pytest.raises(RegistrationError, match="has 201 steps; 1 to 200 are allowed"):
        Pipeline("p", *add_steps(registry, STEP_LIMIT + 1, 1), registry=registry)


async def test_a_long_run_continues_as_new_and_keeps_what_it_has(worker: WorkerFactory, registry: Registry) -> None:
    """When its history grows past Temporal's suggestion, the run goes on under its id, with outputs and steps kept.

    Payload and outputs are close to the document limit together: none of them may be counted twice.
    """
    count = 16
    size = 40_000
    steps = add_steps(registry, count, size)

    @registry.module("last")
    async def last(ctx: ModuleContext, given: Source) -> Number:
        return Number(n=len(given.source))

    Pipeline("p", *steps, last, registry=registry)
    async with worker() as running:
        started = await running.redrive.start("p", {"source": "x" * 700_000})
        result = await running.redrive.result(started.run_id)
        view = await running.redrive.status(started.run_id)
        handle = running.temporal.get_workflow_handle(started.run_id)
        latest = await handle.fetch_history()
    began = latest.events[0].workflow_execution_started_event_attributes
    assert began.continued_execution_run_id
    state = json.loads(began.input.payloads[0].data)["state"]
    done = [step["name"] for step in state["steps"] if step["status"] == "SUCCESS"]
    assert 0 < len(done) < count
    assert sorted(state["outputs"]) == sorted(done)
    assert result.output == {"n": 700_000}
    assert (result.run_id, view.status) == (started.run_id, RunStatus.SUCCESS)
    assert [step.output_size for step in view.steps[8:10]] == [size + 11, 2 * size + 11]


async def test_a_run_that_continued_is_listed_once(worker: WorkerFactory, registry: Registry) -> None:
    """Its search attributes go with it, and a canceled or failed part is not shown beside the newest."""
    Pipeline("p", *add_steps(registry, 8, 1), registry=registry)
    async with worker() as running:
        tenant = running.settings.task_queue
        started = await running.redrive.start("p", {"source": "x" * 1_000_000}, tenant=tenant)
        view = await ended(running.redrive, started.run_id)
        described = await running.temporal.get_workflow_handle(started.run_id).describe()

        async def listed() -> list[str]:
            rows = running.redrive.list_runs(tenant=tenant, status=RunStatus.SUCCESS)
            return [row.run_id async for row in rows]

        rows = await eventually(listed)
    assert view.status is RunStatus.SUCCESS
    assert described.raw_description.workflow_execution_info.first_run_id != described.run_id
    assert rows == [started.run_id]


async def test_outputs_over_the_document_limit_park_the_run(worker: WorkerFactory, registry: Registry) -> None:
    """The step whose output makes the document too large fails as `too_large` and is not tried again."""
    size = DOCUMENT_LIMIT // 3
    Pipeline("p", *add_steps(registry, 4, size), registry=registry)
    async with worker() as running:
        view = await run_until_settled(running.redrive, "p")
    assert [step.status for step in view.steps] == [
        StepStatus.SUCCESS,
        StepStatus.SUCCESS,
        StepStatus.DLQ,
        StepStatus.PENDING,
    ]
    failure = view.steps[2].failure
    assert failure is not None
    assert (failure.category, view.steps[2].attempt) == (Category.TOO_LARGE, 1)
    assert f"the limit is {DOCUMENT_LIMIT}" in failure.message


async def test_a_run_with_very_many_failed_attempts_still_ends(worker: WorkerFactory, registry: Registry) -> None:
    """Attempts that would not fit into the run's result are forgotten, the oldest first, and the run succeeds."""

    @registry.module("last")
    async def last(ctx: ModuleContext, given: Number) -> Blob:
        return Blob(data="x" * 1_000_000)

    entry = Attempt(attempt=1, at=datetime.now(UTC), category=Category.NETWORK, error_type="X", error="e" * 1024)
    names = [f"healed-{number}" for number in range(20)]
    healed = [StepState(name=name, status=StepStatus.SUCCESS, attempts=[entry] * 50) for name in names]
    order = RunInput(
        pipeline="p",
        steps=[*(StepSnapshot(name=name, policy=STEP) for name in names), last.snapshot()],
        state=RunState(steps=[*healed, StepState(name="last")], outputs={name: {} for name in names}),
    )
    async with worker() as running:
        run_id = f"healed-{running.settings.task_queue}"
        await running.temporal.start_workflow("ModuleRun", order, id=run_id, task_queue=running.settings.task_queue)
        result = await running.redrive.result(run_id)
    assert result.status is RunStatus.SUCCESS
    kept = [len(step.attempts) for step in result.steps]
    assert kept == [0] * 19 + [50, 0]
