"""Start the workflow of a run: the one place where its id, search attributes and summary are put together."""

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


async def start_run(client: Client, task_queue: str, run_id: str, order: RunInput) -> bool:
    """Start a run, and tell whether it is new: a run id is used once, also after the run has ended."""
    try:
        await client.start_workflow(
            Workflow.MODULE_RUN,
            order,
            id=run_id,
            task_queue=task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            search_attributes=_search_attributes(order),
            static_summary=f"{order.pipeline} of tenant {order.tenant}",
        )
    except WorkflowAlreadyStartedError:
        return False
    return True


def _search_attributes(order: RunInput) -> TypedSearchAttributes:
    values = {
        SearchAttribute.TENANT: order.tenant,
        SearchAttribute.PIPELINE: order.pipeline,
        SearchAttribute.STATUS: RunStatus.RUNNING,
    }
    pairs = [SearchAttributePair(SearchAttributeKey.for_keyword(name), value) for name, value in values.items()]
    return TypedSearchAttributes(pairs)
