"""Limits a workflow to one input: more fail the workflow itself, not its workflow task again and again."""

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError
from temporalio.worker import (
    ExecuteWorkflowInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from redrive.categories import Category


class OneInput(Interceptor):
    """Refuse a workflow that was started with more than one `--input`."""

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:  # noqa: A002, ARG002
        """Return the interceptor that checks the inputs of each workflow."""
        return _OneInput


class _OneInput(WorkflowInboundInterceptor):
    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002 - the name is the SDK's
        given = len(input.args)
        if given > 1:
            sentence = f"{workflow.info().workflow_type} was given {given} inputs; it takes one JSON document"
            raise ApplicationError(sentence, type=Category.VALIDATION, non_retryable=True)
        return await super().execute_workflow(input)
