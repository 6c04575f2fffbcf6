"""Steps under a debugger: nothing on the server ends an attempt while somebody looks at it.

Timeouts are no part of what a history replay compares, so that a worker with them can continue any run.
"""

from temporalio import workflow
from temporalio.worker import (
    Interceptor,
    StartActivityInput,
    StartLocalActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from redrive.contracts import DEBUG_TIMEOUT, Activity


class LongSteps(Interceptor):
    """Give the attempts of steps a day, and no need to heartbeat."""

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:  # noqa: A002, ARG002
        """Return the interceptor of each workflow."""
        return _Inbound


class _Inbound(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_Outbound(outbound))


class _Outbound(WorkflowOutboundInterceptor):
    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[object]:  # noqa: A002
        if input.activity == Activity.RUN_STEP:
            input.start_to_close_timeout = DEBUG_TIMEOUT
            input.schedule_to_close_timeout = input.heartbeat_timeout = None
        return super().start_activity(input)

    def start_local_activity(self, input: StartLocalActivityInput) -> workflow.ActivityHandle[object]:  # noqa: A002
        if input.activity == Activity.RUN_STEP:
            input.start_to_close_timeout = DEBUG_TIMEOUT
        return super().start_local_activity(input)
