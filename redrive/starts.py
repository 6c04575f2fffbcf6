"""Starts the workflow of a run: the only place that builds its id, search attributes and summary."""

from datetime import timedelta

from temporalio.client import Client
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError

from redrive.contracts import RunInput, RunStatus, SearchAttribute, Workflow
from redrive.fairness import turn_of

# A server that accepts connections but does not answer would block a caller forever.
START_TIMEOUT = timedelta(seconds=10)
_TENANT, _PIPELINE, _STATUS = (
    SearchAttributeKey.for_keyword(name)
    for name in (SearchAttribute.TENANT, SearchAttribute.PIPELINE, SearchAttribute.STATUS)
)


async def start_run(client: Client, task_queue: str, run_id: str, run: RunInput) -> bool:
    """Start a run, and return whether it is new: a run id is used once, even after the run has ended."""
    try:
        await client.start_workflow(
            Workflow.MODULE_RUN,
            run,
            id=run_id,
            task_queue=task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            search_attributes=_search_attributes(run),
            static_summary=f"{run.pipeline} of tenant {run.tenant}",
            priority=turn_of(run.tenant),
            rpc_timeout=START_TIMEOUT,
        )
    except WorkflowAlreadyStartedError:
        return False
    return True


def _search_attributes(run: RunInput) -> TypedSearchAttributes:
    return TypedSearchAttributes(
        [
            SearchAttributePair(_TENANT, run.tenant),
            SearchAttributePair(_PIPELINE, run.pipeline),
            SearchAttributePair(_STATUS, RunStatus.RUNNING),
        ]
    )
