"""The dead letter queues that workers in other processes report to."""

from typing import Any

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from redrive.dead_letter_queue import queue_ids


async def open_queues(client: Client, tenant: str, task_queue: str) -> list[WorkflowHandle[Any, Any]]:
    """Return those of a tenant that are open, as an operator finds them in Temporal's Web UI; there is one at least."""
    handles = [client.get_workflow_handle(name) for name in queue_ids(tenant, task_queue)]
    found = [handle for handle in handles if await _is_open(handle)]
    if not found:
        raise RPCError(f"tenant {tenant!r} has no open dead letter queue", RPCStatusCode.NOT_FOUND, b"")
    return found


async def _is_open(handle: WorkflowHandle[Any, Any]) -> bool:
    try:
        return (await handle.describe()).status is WorkflowExecutionStatus.RUNNING
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False
