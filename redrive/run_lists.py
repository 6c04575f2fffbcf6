"""Lists of runs, as Temporal answers them.

They need Temporal's service alone: the SDK's client, with all that workflows need, takes as long again to load.
"""

from collections.abc import AsyncIterator
from typing import Final

from temporalio.api.workflowservice.v1 import ListWorkflowExecutionsRequest
from temporalio.service import RPCError, WorkflowService

from redrive.names import RunSummary
from redrive.rpc_errors import unavailable
from redrive.visibility import summary

PAGE_SIZE: Final = 1000


async def list_runs(service: WorkflowService, namespace: str, query: str, limit: int) -> AsyncIterator[RunSummary]:
    """Iterate over the runs that a list filter finds, newest first."""
    request = ListWorkflowExecutionsRequest(namespace=namespace, query=query)
    while limit > 0:
        request.page_size = min(limit, PAGE_SIZE)
        try:
            page = await service.list_workflow_executions(request, retry=True)
        except RPCError as error:
            raise unavailable(error) from error
        for execution in page.executions:
            yield summary(execution)
        if not page.next_page_token:
            return
        limit -= len(page.executions)
        request.next_page_token = page.next_page_token
