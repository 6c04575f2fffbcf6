"""Headers of a start or a signal that name no trace: the workflow works, without one."""

import uuid
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    StartWorkflowInput,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from redrive.contracts import Workflow
from redrive.processes.temporal import workflow_runner
from redrive.trace_interceptor import TolerantTracing
from redrive.worker import WORKFLOWS
from redrive.workflows.inputs import OneInput
from tests.integration.odd_inputs.documents import MALFORMED

HEADERS = {what: arguments[0].payload for what, arguments in MALFORMED.items() if len(arguments) == 1}


class Planting(Interceptor):
    """Sends a header of the test's own with each start."""

    def __init__(self) -> None:
        self.header = Payload()

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - the name is the SDK's
        """Return what changes the starts."""
        planting = self

        class Outbound(OutboundInterceptor):
            async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:  # noqa: A002
                input.headers = {"_tracer-data": planting.header}
                return await super().start_workflow(input)

        return Outbound(next)


async def test_a_header_that_names_no_trace_is_left_out(temporal: Client) -> None:
    """A workflow whose start has such a header reads its input all the same, and says what is wrong with that."""
    planting, queue = Planting(), f"queue-{uuid.uuid4().hex}"
    config = temporal.config()
    sender = Client(**config | {"interceptors": [planting]})
    traced = Client(**config | {"interceptors": [TolerantTracing()]})
    worker = Worker(
        traced, task_queue=queue, workflows=WORKFLOWS, workflow_runner=workflow_runner(), interceptors=[OneInput()]
    )
    async with worker:
        for header in HEADERS.values():
            planting.header = header
            with pytest.raises(WorkflowFailureError) as failed:
                await sender.execute_workflow(
                    Workflow.DESCRIBE_BULK, {}, id=f"odd-{uuid.uuid4().hex}", task_queue=queue
                )
            assert isinstance(failed.value.cause, ApplicationError)
            assert "tenant: Field required" in failed.value.cause.message
