"""Runs as they tell themselves: where one is, and whether it is parked. Names workflows by their contracts only."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from redrive.contracts import Query, StepState
from redrive.dead_letters import LetterId, OwnerSignal, RunDocument
from redrive.errors import Unavailable

_ANSWER_TIMEOUT: Final = timedelta(seconds=10)


@dataclass(frozen=True)
class Parked:
    """A run that waits at a dead step, in a cycle of it."""

    letter: LetterId
    cycle: int


async def execution_status(client: Client, run_id: str) -> WorkflowExecutionStatus | None:
    """Return where Temporal says a run is, or None when it knows of none."""
    try:
        description = await client.get_workflow_handle(run_id).describe()
    except RPCError as error:
        if error.status in {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT}:
            return None
        raise
    return description.status


async def read_run(client: Client, run_id: str) -> RunDocument | None:
    """Ask a run for its state; None when it has ended. Raises Unavailable when no worker answers for it."""
    if await execution_status(client, run_id) is not WorkflowExecutionStatus.RUNNING:
        return None
    try:
        run: RunDocument = await client.get_workflow_handle(run_id).query(
            Query.DOCUMENT, result_type=RunDocument, rpc_timeout=_ANSWER_TIMEOUT
        )
    except (RPCError, WorkflowQueryFailedError) as error:
        raise Unavailable(f"run {run_id!r} did not answer: is a worker of its task queue running?") from error
    return run


def step_of(run: RunDocument, name: str | None) -> StepState | None:
    """Return the state of a run's step."""
    return next((step for step in run.run.state.steps if step.name == name), None) if run.run.state else None


async def read_parked(client: Client, run_id: str) -> Parked | None:
    """Ask a run where it is parked; None when it is not. Raises Unavailable when no worker answers for it."""
    run = await read_run(client, run_id)
    step = step_of(run, run.parked_at) if run else None
    if run is None or step is None or step.failure is None:
        return None
    return Parked(LetterId(tenant=run.run.tenant, run_id=run_id, step=step.name), step.failure.cycle)


async def ask_to_report(client: Client, run_id: str) -> bool:
    """Have a run tell its dead letter again where it is parked; False when it has ended.

    The run and its worker do it, so that what is stored is redacted by the worker's settings. An order that reached the
    run before is carried out instead.
    """
    try:
        await client.get_workflow_handle(run_id).signal(OwnerSignal.REPORT)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False
    return True
