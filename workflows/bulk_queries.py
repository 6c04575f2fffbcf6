"""Queries to a worker about bulk operations: plans, one operation, its items. Each workflow is one activity."""

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy

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
    from redrive.contracts import Activity, Workflow
    from redrive.workflows.inputs import NOTHING, read_input

TIMEOUT = timedelta(seconds=20)


@workflow.defn(name=Workflow.PLAN_BULK)
class PlanBulk:
    """Return what a bulk operation would do."""

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> PlanAnswer:
        answer: PlanAnswer = await _ask(Activity.PLAN_BULK, read_input(BulkCommand, raw), PlanAnswer)
        return answer


@workflow.defn(name=Workflow.APPROVE_BULK)
class ApproveBulk:
    """Approve a plan."""

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> ApprovalAnswer:
        answer: ApprovalAnswer = await _ask(Activity.APPROVE_BULK, read_input(Approval, raw), ApprovalAnswer)
        return answer


@workflow.defn(name=Workflow.DESCRIBE_BULK)
class DescribeBulk:
    """Return a bulk operation."""

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> BulkView | None:
        view: BulkView | None = await _ask(Activity.DESCRIBE_BULK, read_input(BulkRequest, raw), BulkView | None)
        return view


@workflow.defn(name=Workflow.LIST_BULK_ITEMS)
class ListBulkItems:
    """Return items of a bulk operation."""

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> BulkItems:
        items: BulkItems = await _ask(Activity.LIST_BULK_ITEMS, read_input(ItemsRequest, raw), BulkItems)
        return items


async def _ask(activity: Activity, given: object, returns: Any) -> Any:
    return await workflow.execute_local_activity(
        activity,
        given,
        result_type=returns,
        start_to_close_timeout=TIMEOUT,
        retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=1)),
    )
