"""Whatever is signalled, updated or queried by hand, no workflow task fails, and the next good command still works."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.client import Client, WithStartWorkflowOperation, WorkflowHandle, WorkflowQueryFailedError
from temporalio.client import WorkflowUpdateFailedError as UpdateFailed
from temporalio.common import RawValue, WorkflowIDConflictPolicy
from temporalio.service import RPCError

from redrive import Redrive, Registry, RunStatus
from redrive.bulk import BulkCommand, BulkControl, BulkStart
from redrive.connection import connect_temporal
from redrive.contracts import Query, Workflow
from redrive.dead_letters import LetterId, LetterInput, LetterSignal, QueueInput, RunSignal, Verb
from redrive.settings import Settings
from redrive.starter.stack.state import StackInfo
from redrive.worker import running_worker
from tests.conftest import owner_url
from tests.integration.dead_letters.lab import SERVICES, Case, register
from tests.integration.odd_inputs.documents import MALFORMED, of

NAMES = [*Verb, *LetterSignal, *RunSignal, *BulkControl, "nonsense", "x" * 900]
WHO = {"request_id": "r-1", "requested_by": "ada", "reason": "by hand"}
CYCLE: dict[str, Any] = {
    "step": "second",
    "cycle": 1,
    "category": "validation",
    "error_type": "E",
    "message": "m",
    "attempts": [],
}


def given(**fields: Any) -> list[RawValue]:
    """Return a command to replay."""
    return [of(WHO | {"request_id": str(fields)[:100]} | fields)]


# They fit their models; a run that carried them out would break.
COMMANDS = {
    "an unknown step": given(from_step="no-such-step"),
    "a later step": given(from_step="third"),
    "a policy that is none": given(policy={"max_attempts": "many"}),
    "a policy without end": given(policy={"timeout": "P999999999D"}),
    "a patch of 1 MB": given(input_patch={"note": "x" * 1_050_000}),
}


@pytest.fixture
async def lab(settings: Settings, registry: Registry) -> AsyncIterator[Redrive]:
    """A worker that knows the pipelines of the dead letters' tests, and a client of it."""
    register(registry)
    async with running_worker(settings, registry):
        client = await connect_temporal(settings)
        yield Redrive(client, task_queue=settings.task_queue, registry=registry)


ENDED_BY_SIGNALS = {
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
}


@pytest.fixture
async def case(lab: Redrive, settings: Settings, stack: StackInfo, temporal: Client) -> AsyncIterator[Case]:
    """A run to be."""
    made = Case(lab, temporal, owner_url(stack), settings.task_queue, patience=90)
    yield made
    del SERVICES[made.name]


async def failed_tasks(handle: WorkflowHandle[Any, Any]) -> list[str]:
    """Return why workflow tasks of a workflow failed; not those that Temporal ended because of signals meanwhile."""
    events = [event async for event in handle.fetch_history_events()]
    failed = [
        event.workflow_task_failed_event_attributes
        for event in events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    ]
    return [each.failure.message for each in failed if each.cause not in ENDED_BY_SIGNALS]


async def send_all(handle: WorkflowHandle[Any, Any], names: list[str]) -> None:
    """Signal every name with every malformed argument."""
    for name in names:
        await asyncio.gather(*(handle.signal(name, args=arguments) for arguments in MALFORMED.values()))


async def test_no_signal_fails_a_task_of_a_parked_run(case: Case) -> None:
    """Malformed signals, and orders past the dead letter that the run cannot carry out, leave it parked and well."""
    await case.park("second")
    await send_all(case.run, [Verb.REPLAY, RunSignal.REPORT])
    for arguments in COMMANDS.values():
        await case.run.signal(Verb.REPLAY, args=arguments)
    for name in (Verb.REPLAY, Verb.CONTINUE, "nonsense"):
        await case.run.signal(name, args=MALFORMED["encrypted"])
        await case.run.signal(name, args=MALFORMED["two inputs, one encrypted"])
    case.mend()
    assert (await case.command(Verb.REPLAY)).accepted
    await case.until(RunStatus.SUCCESS)
    assert await failed_tasks(case.run) == []
    assert await failed_tasks(case.queue) == []


async def test_no_signal_fails_a_task_of_a_queue(case: Case) -> None:
    """Every signal that the workflow knows, and some that it does not, with every malformed argument."""
    await case.park("second")
    queue = case.queue
    await send_all(queue, [Verb.REPLAY, LetterSignal.EXHAUSTED, "nonsense"])
    long = {"letter": case.letter("second").model_dump(), "pipeline": "p" * 10_000, "cycle": CYCLE, "payload": {}}
    fields = {"config": {"base": 1, "cap": 2, "max_attempts": 1, "timeout": 1}, "correlation_id": "c", "key": None}
    for at in ("2026-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59"):
        await queue.signal(LetterSignal.EXHAUSTED, args=[of(long | fields | {"started_at": at, "at": at})])
    case.mend()
    assert (await case.command(Verb.REPLAY)).accepted
    await case.until(RunStatus.SUCCESS)
    assert await failed_tasks(queue) == []


UPDATED = {
    Workflow.MODULE_RUN: Verb.CONTINUE,
    Workflow.DEAD_LETTER_QUEUE: Verb.REPLAY,
    Workflow.DEAD_LETTER: Verb.REPLAY,
    Workflow.BULK_REPLAY: BulkControl.PAUSE,
}


@pytest.mark.parametrize("kind", UPDATED)
async def test_no_update_fails_a_task(lab: Redrive, temporal: Client, settings: Settings, kind: Workflow) -> None:
    """Updates that come with the start, before the workflow has read its input, are answered or end with it."""
    handles = []
    for what, arguments in MALFORMED.items():
        operation: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            kind,
            started_with(kind),
            id=f"odd-{uuid.uuid4().hex}",
            task_queue=settings.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
        )
        try:
            async with asyncio.timeout(60):
                await temporal.execute_update_with_start_workflow(
                    UPDATED[kind], args=arguments, start_workflow_operation=operation
                )
        except (UpdateFailed, RPCError):
            pass
        except TimeoutError:
            pytest.fail(f"{what}: no answer")
        handles.append(await operation.workflow_handle())
    assert [await failed_tasks(handle) for handle in handles] == [[]] * len(MALFORMED)


def started_with(kind: Workflow) -> Any:
    """Return an input that a workflow of this kind can read."""
    match kind:
        case Workflow.DEAD_LETTER_QUEUE:
            return QueueInput(tenant="acme")
        case Workflow.DEAD_LETTER:
            return LetterInput(letter=LetterId(tenant="acme", run_id="no-such-run", step="second"))
        case Workflow.BULK_REPLAY:
            command = BulkCommand(tenant="acme", verb=Verb.DISCARD)
            return BulkStart(request_id="r", command=command, plan_hash="none", requested_by="ada", reason="by hand")
        case _:
            return {"pipeline": "no-such-pipeline"}


async def test_no_signal_that_comes_with_the_start_fails_a_task(
    lab: Redrive, temporal: Client, settings: Settings
) -> None:
    """Signals reach a workflow before it has read its input, which may be malformed as well."""
    handles = []
    for kind in (*UPDATED, Workflow.PLAN_BULK):
        for name in NAMES:
            for arguments in (MALFORMED["encrypted"], MALFORMED["wrong types"]):
                handle: WorkflowHandle[Any, Any] = await temporal.start_workflow(
                    kind,
                    args=arguments,
                    id=f"odd-{uuid.uuid4().hex}",
                    task_queue=settings.task_queue,
                    start_signal=name,
                    start_signal_args=arguments,
                )
                handles.append(handle)
    async with asyncio.timeout(120):
        await asyncio.gather(*(handle.result() for handle in handles), return_exceptions=True)
    assert [await failed_tasks(handle) for handle in handles] == [[]] * len(handles)


async def test_no_query_fails_a_task(case: Case) -> None:
    """A query with arguments that it does not take, or that nobody can read, fails by itself."""
    await case.park("second")
    for name in (*Query, "nonsense"):
        for arguments in MALFORMED.values():
            with contextlib.suppress(WorkflowQueryFailedError, RPCError):
                await case.run.query(name, args=arguments)
    case.mend()
    assert (await case.command(Verb.REPLAY)).accepted
    await case.until(RunStatus.SUCCESS)
    assert await failed_tasks(case.run) == []
