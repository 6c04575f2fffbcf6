"""Starts the workflow of a run: the only place that builds its id and summary."""

from datetime import timedelta

from temporalio.client import Client
from temporalio.common import (
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from redrive.contracts import RunInput, RunStatus, Workflow
from redrive.fairness import turn_of
from redrive.run_labels import check_attribute
from redrive.visibility import search_attributes, with_labels

# A server that accepts connections but does not answer would block a caller forever.
START_TIMEOUT = timedelta(seconds=10)


async def start_run(client: Client, task_queue: str, run_id: str, run: RunInput, *, eager: bool = False) -> bool:
    """Start a run, and return whether it is new: a run id is used once, even after the run has ended.

    With `eager`, a worker of the same client gets its first workflow task with the answer, if it has room for it.
    """
    try:
        await client.start_workflow(
            Workflow.MODULE_RUN,
            run,
            id=run_id,
            task_queue=task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            search_attributes=with_labels(
                search_attributes(tenant=run.tenant, pipeline=run.pipeline, status=RunStatus.RUNNING), run.labels
            ),
            static_summary=f"{run.pipeline} of tenant {run.tenant}",
            priority=turn_of(run.tenant),
            request_eager_start=eager,
            rpc_timeout=START_TIMEOUT,
        )
    except WorkflowAlreadyStartedError:
        return False
    except RPCError as error:
        check_attribute(error)
        raise
    return True
