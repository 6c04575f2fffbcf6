"""Where the plugin stands between Temporal and workflow code. Deterministic."""

import asyncio
from typing import Any, Final

from temporalio import workflow
from temporalio.worker import (
    ExecuteWorkflowInput,
    HandleSignalInput,
    HandleUpdateInput,
    Interceptor,
    StartActivityInput,
    StartChildWorkflowInput,
    StartLocalActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from redrive.contracts import Workflow
from redrive.plugin.code_lines import raising_line
from redrive.plugin.handles import ParkingActivityHandle, ParkingChildHandle
from redrive.plugin.module_steps import CURRENT, ModuleSteps
from redrive.plugin.operations import ActivityOperation, ChildOperation, WorkflowOperation
from redrive.plugin.options import Options, are_errors_raised, has_no_dead_letters
from redrive.plugin.parking import Parking
from redrive.plugin.reports import NAMES

_OUR_OWN: Final = frozenset(Workflow)


class ParkingInterceptor(Interceptor):
    """Let the workflows of a worker park."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002, ARG002 - Temporal's name
    ) -> type[WorkflowInboundInterceptor]:
        """Return the class that Temporal makes for each run."""
        return type("RedriveInbound", (_Inbound,), {"options": self._options})


class _Inbound(WorkflowInboundInterceptor):
    options: Options

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        self._parking = Parking(self.options)
        self._steps = ModuleSteps(self._parking, self.options)
        super().init(_Outbound(outbound, self._parking, self.options))

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002 - Temporal's name
        self._parking.is_off = has_no_dead_letters(input.type) or self._is_our_own()
        self._parking.main = asyncio.current_task()
        CURRENT.set(self._steps)
        try:
            result = await self._execute(input)
        except BaseException as error:
            # A bug fails the workflow task alone: the workflow goes on, and its dead letters stay open.
            if _is_an_end(error):
                await self._parking.close()
            raise
        await self._parking.close()
        return result

    def _is_our_own(self) -> bool:
        return self.options.has_modules and workflow.info().workflow_type in _OUR_OWN

    async def handle_signal(self, input: HandleSignalInput) -> None:  # noqa: A002 - Temporal's name
        CURRENT.set(self._steps)
        await super().handle_signal(input)

    async def handle_update_handler(self, input: HandleUpdateInput) -> Any:  # noqa: A002 - Temporal's name
        CURRENT.set(self._steps)
        return await super().handle_update_handler(input)

    async def _execute(self, given: ExecuteWorkflowInput) -> Any:
        if not self.options.whole_workflows:
            return await self.next.execute_workflow(given)
        operation = WorkflowOperation(given)
        try:
            return await self.next.execute_workflow(given)
        except Exception as error:
            # Not only Temporal's errors: workers may name others by which a workflow fails.
            if not workflow.is_failure_exception(error):
                raise
            operation.code_line = raising_line(error)
            rescue = self._parking.rescue(operation, error)
            if rescue is None:
                raise
        return await rescue


def _is_an_end(error: BaseException) -> bool:
    if isinstance(error, GeneratorExit):
        # The workflow leaves the worker's memory: nothing of Temporal's may be asked any more.
        return False
    is_end = isinstance(error, workflow.ContinueAsNewError | asyncio.CancelledError)
    return is_end or workflow.is_failure_exception(error)


class _Outbound(WorkflowOutboundInterceptor):
    def __init__(self, following: WorkflowOutboundInterceptor, parking: Parking, options: Options) -> None:
        super().__init__(following)
        self._parking = parking
        self._options = options

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:  # noqa: A002
        if self._is_left_alone():
            return self.next.start_activity(input)
        operation = ActivityOperation(input, self.next.start_activity)
        return ParkingActivityHandle(self.next.start_activity(input), operation, self._parking.rescue)

    def start_local_activity(self, input: StartLocalActivityInput) -> workflow.ActivityHandle[Any]:  # noqa: A002
        if input.activity in NAMES or self._is_left_alone():
            return self.next.start_local_activity(input)
        operation = ActivityOperation(input, self.next.start_local_activity)
        return ParkingActivityHandle(self.next.start_local_activity(input), operation, self._parking.rescue)

    async def start_child_workflow(
        self,
        input: StartChildWorkflowInput,  # noqa: A002
    ) -> workflow.ChildWorkflowHandle[Any, Any]:
        if not self._options.children or self._is_left_alone():
            return await self.next.start_child_workflow(input)
        operation = ChildOperation(input, self.next.start_child_workflow)
        return ParkingChildHandle(await self.next.start_child_workflow(input), operation, self._parking.rescue)

    def _is_left_alone(self) -> bool:
        return are_errors_raised() or self._parking.is_off
