"""A parked run as it tells itself, and its dead letter told anew. Names workflows by their contracts only."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus, WorkflowQueryFailedError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from redrive.contracts import FailedCycle, Query, StepSnapshot, Workflow
from redrive.dead_letters import SNAPSHOT_LIMIT, Exhausted, LetterId, LetterInput, LetterSignal, RunDocument
from redrive.documents import json_size, patched, step_input
from redrive.errors import Unavailable
from redrive.redaction import Redactor

_ANSWER_TIMEOUT: Final = timedelta(seconds=10)


@dataclass(frozen=True)
class Parked:
    """A run that waits at a dead step."""

    letter: LetterId
    run: RunDocument
    snapshot: StepSnapshot
    cycle: FailedCycle
    task_queue: str


async def open_execution(client: Client, run_id: str) -> WorkflowExecution | None:
    """Return a run's workflow, or None when it has ended or is gone."""
    try:
        description = await client.get_workflow_handle(run_id).describe()
    except RPCError as error:
        if error.status in {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT}:
            return None
        raise
    return description if description.status is WorkflowExecutionStatus.RUNNING else None


async def read_parked(client: Client, run_id: str) -> Parked | None:
    """Ask a run where it is parked; None when it is not. Raises Unavailable when no worker answers for it."""
    execution = await open_execution(client, run_id)
    if execution is None:
        return None
    try:
        run: RunDocument = await client.get_workflow_handle(run_id).query(
            Query.DOCUMENT, result_type=RunDocument, rpc_timeout=_ANSWER_TIMEOUT
        )
    except (RPCError, WorkflowQueryFailedError) as error:
        raise Unavailable(f"run {run_id!r} did not answer: is a worker of its task queue running?") from error
    step = next((step for step in run.run.state.steps if step.name == run.parked_at), None) if run.run.state else None
    if step is None or step.failure is None:
        return None
    snapshot = next(snapshot for snapshot in run.steps if snapshot.name == step.name)
    letter = LetterId(tenant=run.run.tenant, run_id=run_id, step=step.name)
    return Parked(letter, run, snapshot, step.failure, execution.task_queue)


async def tell_letter(client: Client, parked: Parked, redactor: Redactor) -> None:
    """Tell the dead letter's workflow of the exhausted step, as the run did. Telling it twice does no harm."""
    run, letter = parked.run.run, parked.letter
    times = [attempt.at for attempt in parked.cycle.attempts]
    message = Exhausted(
        letter=letter,
        pipeline=run.pipeline,
        cycle=parked.cycle,
        payload=_snapshot(parked, redactor),
        config=parked.snapshot.policy,
        correlation_id=run.correlation_id or letter.run_id,
        key=run.key,
        at=max(times, default=datetime.now(UTC)),
    )
    await client.start_workflow(
        Workflow.DEAD_LETTER,
        LetterInput(letter=letter),
        id=letter.workflow_id,
        task_queue=parked.task_queue,
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        start_signal=LetterSignal.EXHAUSTED,
        start_signal_args=[message],
    )


def _snapshot(parked: Parked, redactor: Redactor) -> Any:
    """Return the step's input as the record may hold it."""
    state = parked.run.run.state
    edits = state.patches.get(parked.letter.step, []) if state else []
    payload = redactor.value(patched(step_input(parked.run.document, parked.snapshot.reads), edits))
    if json_size(payload) > SNAPSHOT_LIMIT:
        return {"omitted": f"larger than {SNAPSHOT_LIMIT} bytes; the run has it"}
    return payload
