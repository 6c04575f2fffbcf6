"""Queries to a worker: about its modules, about bulk operations (plans, one operation, its items), about a command.

Each workflow is one local activity, which any live worker answers.
"""

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from redrive.bulk import (
        Approval,
        ApprovalAnswer,
        BulkCommand,
        BulkItems,
        BulkRequest,
        BulkView,
        ItemsRequest,
        PlanAnswer,
    )
    from redrive.contracts import Activity, Catalog, Resolution, ResolveRequest, Workflow
    from redrive.dead_letters import RECORD_BEHIND, CommandRecorded, CommandRequest
    from redrive.service_states import ServiceStates
    from redrive.workflows.inputs import NOTHING, read_input, read_no_input
    from redrive.workflows.records import is_behind, work_with_record


CATALOG_TIMEOUT = timedelta(seconds=10)
# A probe takes up to 5 s; all of them are made at once.
PROBE_TIMEOUT = timedelta(seconds=8)
BULK_TIMEOUT = timedelta(seconds=20)


@workflow.defn(name=Workflow.DESCRIBE_MODULES)
class DescribeModules:
    """List the modules and pipelines of a worker."""

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> Catalog:
        read_no_input(raw)
        catalog: Catalog = await workflow.execute_local_activity(
            Activity.DESCRIBE_MODULES, result_type=Catalog, start_to_close_timeout=CATALOG_TIMEOUT
        )
        return catalog


@workflow.defn(name=Workflow.PROBE_SERVICES)
class ProbeServices:
    """Return how the services of a worker do."""

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> ServiceStates:
        read_no_input(raw)
        states: ServiceStates = await workflow.execute_local_activity(
            Activity.PROBE_SERVICES,
            result_type=ServiceStates,
            start_to_close_timeout=PROBE_TIMEOUT,
            retry_policy=RetryPolicy(maximum_attempts=1),
        )
        return states


@workflow.defn(name=Workflow.RESOLVE_PIPELINE)
class ResolvePipeline:
    """Return the steps of a pipeline, or why a payload cannot start it."""

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> Resolution:
        request = read_input(ResolveRequest, raw)
        resolution: Resolution = await workflow.execute_local_activity(
            Activity.RESOLVE_PIPELINE, request, result_type=Resolution, start_to_close_timeout=CATALOG_TIMEOUT
        )
        return resolution


@workflow.defn(name=Workflow.RECORD_COMMAND)
class RecordCommand:
    """Record a command to a foreign workflow, whose worker has no database, and return the answer."""

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> CommandRecorded:
        request = read_input(CommandRequest, raw)
        try:
            recorded: CommandRecorded = await work_with_record(
                Activity.RECORD_COMMAND, request, returns=CommandRecorded
            )
        except ActivityError as error:
            if is_behind(error):
                raise ApplicationError("the record is behind", type=RECORD_BEHIND, non_retryable=True) from error
            raise
        return recorded


@workflow.defn(name=Workflow.PLAN_BULK)
class PlanBulk:
    """Return what a bulk operation would do."""

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> PlanAnswer:
        answer: PlanAnswer = await _ask_bulk(Activity.PLAN_BULK, read_input(BulkCommand, raw), PlanAnswer)
        return answer


@workflow.defn(name=Workflow.APPROVE_BULK)
class ApproveBulk:
    """Approve a plan."""

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> ApprovalAnswer:
        answer: ApprovalAnswer = await _ask_bulk(Activity.APPROVE_BULK, read_input(Approval, raw), ApprovalAnswer)
        return answer


@workflow.defn(name=Workflow.DESCRIBE_BULK)
class DescribeBulk:
    """Return a bulk operation."""

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> BulkView | None:
        view: BulkView | None = await _ask_bulk(Activity.DESCRIBE_BULK, read_input(BulkRequest, raw), BulkView | None)
        return view


@workflow.defn(name=Workflow.LIST_BULK_ITEMS)
class ListBulkItems:
    """Return items of a bulk operation."""

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> BulkItems:
        items: BulkItems = await _ask_bulk(Activity.LIST_BULK_ITEMS, read_input(ItemsRequest, raw), BulkItems)
        return items


async def _ask_bulk(activity: Activity, given: object, returns: Any) -> Any:
    return await workflow.execute_local_activity(
        activity,
        given,
        result_type=returns,
        start_to_close_timeout=BULK_TIMEOUT,
        retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=1)),
    )
