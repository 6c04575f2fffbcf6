"""Starting runs through the client: keys, limits, pipelines of other processes, missing workers."""

import asyncio
import time
import uuid

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest

from redrive import (
    InvalidInput,
    ModuleContext,
    Pipeline,
    Redrive,
    Registry,
    RunFailed,
    RunNotFound,
    RunStatus,
    Unavailable,
)
from redrive.categories import Category
from redrive.contracts import PAYLOAD_LIMIT, RESULT_LIMIT, StepStatus
from redrive.errors import TooLarge
from tests.conftest import Running, WorkerFactory, eventually
from tests.integration.runs.samples import Blob, Number, add_good_pipeline, ended, run_until_settled

NO_WORKER_IS_SAID_WITHIN = 30.0


def stranger(running: Running) -> Redrive:
    """A client of the same task queue that has none of the modules' code."""
    return Redrive(running.temporal, task_queue=running.settings.task_queue, registry=Registry())


async def test_the_same_key_gives_the_same_run(worker: WorkerFactory, registry: Registry) -> None:
    """A second start with a key answers with the first's run, while it runs and after it ended."""
    add_good_pipeline(registry)
    key = uuid.uuid4().hex
    async with worker() as running:
        first = await running.redrive.start("good", {"n": 1}, key=key)
        second = await running.redrive.start("good", {"n": 1}, key=key)
        view = await ended(running.redrive, first.run_id)
        third = await running.redrive.start("good", {"n": 1}, key=key)
        other = await running.redrive.start("good", {"n": 1}, key=key, tenant="other")
        await ended(running.redrive, other.run_id)
    assert (first.is_cached, second.is_cached, third.is_cached) == (False, True, True)
    assert first.run_id == second.run_id == third.run_id
    assert third.status is RunStatus.SUCCESS
    assert view.key == key
    assert (other.is_cached, other.run_id == first.run_id) == (False, False)


async def test_a_caller_without_the_code_starts_a_run_by_name(worker: WorkerFactory, registry: Registry) -> None:
    """A worker tells the steps of a pipeline that the caller's process does not know."""
    add_good_pipeline(registry)
    async with worker() as running:
        view = await run_until_settled(stranger(running), "good", {"n": 1})
        catalog = await stranger(running).catalog()
    assert view.status is RunStatus.SUCCESS
    assert [step.status for step in view.steps] == [StepStatus.SUCCESS]
    assert [module.name for module in catalog.modules] == ["good"]
    assert [pipeline.steps for pipeline in catalog.pipelines] == [["good"]]


@pytest.mark.parametrize(
    ("pipeline", "payload", "error", "sentence"),
    [
        ("good", {"n": "many"}, InvalidInput, "payload does not fit 'good': n: .*unable to parse.*got 'many'"),
        ("good", {"good": 1}, InvalidInput, "payload.good: the name belongs to a step"),
        ("Good!", {}, InvalidInput, "pipeline: String should match pattern"),
    ],
    ids=["does not fit", "name of a step", "bad name"],
)
async def test_a_refused_start_creates_no_run(
    *,
    worker: WorkerFactory,
    registry: Registry,
    pipeline: str,
    payload: dict[str, object],
    error: type[Exception],
    sentence: str,
) -> None:
    """A caller with the code refuses by itself, and no run exists. Callers without it: test_catalogs.py."""
    add_good_pipeline(registry)
    key = uuid.uuid4().hex
    async with worker() as running:
        with pytest.raises(error, match=sentence):
            await running.redrive.start(pipeline, payload, key=key)
        fresh = await running.redrive.start("good", {}, key=key)
        await ended(running.redrive, fresh.run_id)
    assert not fresh.is_cached


async def test_without_a_worker_the_steps_cannot_be_told(worker: WorkerFactory, registry: Registry) -> None:
    """Where neither this process nor a catalog knows them, the caller is told within seconds."""
    async with worker() as running:
        client = stranger(running)
    began = time.monotonic()
    with pytest.raises(Unavailable, match="no worker answered on task queue"):
        await client.steps("good", {})
    assert time.monotonic() - began < NO_WORKER_IS_SAID_WITHIN


async def test_without_a_worker_a_status_is_still_answered(worker: WorkerFactory, registry: Registry) -> None:
    """A run that no worker has seen shows what Temporal knows of it, with a note."""
    add_good_pipeline(registry)
    async with worker() as running:
        redrive = running.redrive
    started = await redrive.start("good", {})
    view = await redrive.status(started.run_id)
    async with worker():
        done = await ended(redrive, started.run_id)
    assert (view.status, view.pipeline, view.tenant, view.steps) == (RunStatus.RUNNING, "good", "default", [])
    assert view.note is not None
    assert "no worker answered" in view.note
    assert (done.status, done.note) == (RunStatus.SUCCESS, None)


async def test_an_unknown_run_is_said_to_be_unknown(worker: WorkerFactory, registry: Registry) -> None:
    """Status, result and cancel of an id that no run has raise RunNotFound with the id."""
    async with worker() as running:
        redrive = running.redrive
        with pytest.raises(RunNotFound, match="'run-nobody'"):
            await redrive.status("run-nobody")
        with pytest.raises(RunNotFound, match="'run-nobody'"):
            await redrive.result("run-nobody")
        with pytest.raises(RunNotFound, match="'run-nobody'"):
            await redrive.cancel("run-nobody", reason="no")


async def _is_unknown(running: Running, run_id: str) -> bool:
    try:
        await stranger(running).result(run_id)
    except RunNotFound:
        return True
    except RunFailed:
        # Terminated: Temporal does so before it deletes an open run.
        return False
    raise AssertionError("nothing can have run it")


async def test_a_started_run_that_temporal_has_forgotten_is_said_to_be_unknown(
    worker: WorkerFactory, registry: Registry
) -> None:
    """A client waits for runs that it started without asking what they are; one that is gone raises RunNotFound."""
    add_good_pipeline(registry)
    async with worker() as running:
        redrive, temporal = running.redrive, running.temporal
    started = await redrive.start("good", {})
    gone = WorkflowExecution(workflow_id=started.run_id)
    await temporal.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(namespace=temporal.namespace, workflow_execution=gone)
    )
    await eventually(lambda: _is_unknown(running, started.run_id))
    with pytest.raises(RunNotFound, match=started.run_id):
        await redrive.result(started.run_id)


async def test_a_payload_over_the_limit_is_refused(worker: WorkerFactory, registry: Registry) -> None:
    """A payload of exactly 1 MiB runs; one byte more is refused at the start."""

    @registry.module("measure")
    async def measure(ctx: ModuleContext, given: Blob) -> Number:
        return Number(n=len(given.data))

    Pipeline("p", measure, registry=registry)
    room = PAYLOAD_LIMIT - len('{"data":""}')
    async with worker() as running:
        with pytest.raises(TooLarge, match=f"payload: {PAYLOAD_LIMIT + 1} bytes; the limit is {PAYLOAD_LIMIT}"):
            await running.redrive.start("p", {"data": "x" * (room + 1)})
        started = await running.redrive.start("p", {"data": "x" * room})
        result = await running.redrive.result(started.run_id)
    assert result.output == {"n": room}


async def test_a_result_over_the_limit_fails_the_step_once(worker: WorkerFactory, registry: Registry) -> None:
    """A result of exactly 1 MiB is kept; one byte more is `too_large`, and its module is not called again."""
    calls: list[int] = []

    @registry.module("produce")
    async def produce(ctx: ModuleContext, given: Number) -> Blob:
        calls.append(given.n)
        return Blob(data="x" * given.n)

    Pipeline("p", produce, registry=registry)
    room = RESULT_LIMIT - len('{"data":""}')
    async with worker() as running:
        fits = await run_until_settled(running.redrive, "p", {"n": room})
        over = await run_until_settled(running.redrive, "p", {"n": room + 1})
    assert calls == [room, room + 1]
    assert (fits.status, fits.steps[0].output_size) == (RunStatus.SUCCESS, RESULT_LIMIT)
    failure = over.steps[0].failure
    assert failure is not None
    assert failure.category is Category.TOO_LARGE
    assert f"returned {RESULT_LIMIT + 1} bytes; the limit is {RESULT_LIMIT}" in failure.message


async def test_a_terminated_run_is_shown_as_failed(worker: WorkerFactory, registry: Registry) -> None:
    """A run that somebody terminated in Temporal is FAILED in the status, though it could not say so itself."""
    running_now, release = asyncio.Event(), asyncio.Event()

    @registry.module("slow")
    async def slow(ctx: ModuleContext, given: Number) -> Number:
        running_now.set()
        await release.wait()
        return given

    Pipeline("p", slow, registry=registry)
    async with worker() as running:
        started = await running.redrive.start("p", {})
        await asyncio.wait_for(running_now.wait(), 45)
        await running.temporal.get_workflow_handle(started.run_id).terminate("test")
        view = await running.redrive.status(started.run_id)
        release.set()
    assert view.status is RunStatus.FAILED
    assert view.note is None
