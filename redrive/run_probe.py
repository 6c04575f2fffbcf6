"""What a run and Temporal say about it: its state, and whether it is parked.

Names workflows by their contracts only.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from redrive.contracts import Query, StepState
from redrive.dead_letters import LetterId, RunDocument, RunSignal
from redrive.errors import Unavailable

_ANSWER_TIMEOUT: Final = timedelta(seconds=10)
# What a server says of a run whose data is damaged, and not in an outage.
_DAMAGED: Final = {RPCStatusCode.DATA_LOSS, RPCStatusCode.INTERNAL, RPCStatusCode.UNKNOWN}


@dataclass(frozen=True)
class Parked:
    """A run that waits at a dead step, in one cycle of it."""

    letter: LetterId
    cycle: int


async def describe(client: Client, run_id: str, execution: str | None = None) -> WorkflowExecutionDescription | None:
    """Return what Temporal says of a run, or of one execution of it; None if it does not know the run.

    Raises Unavailable if Temporal cannot read this run, and Temporal's own error if it does not answer at all.
    """
    try:
        with _readable(run_id):
            return await client.get_workflow_handle(run_id, run_id=execution).describe()
    except RPCError as error:
        if error.status in {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT}:
            return None
        raise


@contextlib.contextmanager
def _readable(run_id: str) -> Iterator[None]:
    try:
        yield
    except RPCError as error:
        if error.status not in _DAMAGED:
            raise
        message = f"Temporal cannot read run {run_id!r} ({error.status.name.lower()}): {error.message[:300]}"
        raise Unavailable(message) from error


async def execution_status(client: Client, run_id: str, execution: str | None = None) -> WorkflowExecutionStatus | None:
    """Return Temporal's status of a run like `describe`."""
    description = await describe(client, run_id, execution)
    return description.status if description else None


async def read_run(client: Client, run_id: str) -> RunDocument | None:
    """Query a run's state; None if it has ended. Raises Unavailable if no worker answers."""
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
    """Query where a run is parked; None if it is not. Raises Unavailable if no worker answers."""
    run = await read_run(client, run_id)
    step = step_of(run, run.parked_at) if run else None
    if run is None or step is None or step.failure is None:
        return None
    return Parked(LetterId(tenant=run.run.tenant, run_id=run_id, step=step.name), step.failure.cycle)


async def ask_to_report(client: Client, run_id: str) -> bool:
    """Ask a run to report again to its dead letter where it is parked; False if the run has ended.

    The run and its worker do it, so that the worker's settings redact what is stored. If a command has reached the run
    before, it is carried out instead. Raises Unavailable if Temporal cannot read the run.
    """
    try:
        with _readable(run_id):
            await client.get_workflow_handle(run_id).signal(RunSignal.REPORT)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False
    return True
