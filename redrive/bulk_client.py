"""The client for bulk operations: plan, approve, start, follow, pause, resume and stop.

A caller needs Temporal only: workers read the records.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from pydantic import ValidationError
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import (
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.service import RPCError, RPCStatusCode

from redrive.bulk import (
    Approval,
    ApprovalAnswer,
    BulkAnswer,
    BulkBegin,
    BulkCommand,
    BulkControl,
    BulkControlInput,
    BulkItems,
    BulkPlan,
    BulkRequest,
    BulkStart,
    BulkView,
    ItemsRequest,
    ItemStatus,
    PlanAnswer,
)
from redrive.contracts import PAYLOAD_LIMIT, Message, Workflow
from redrive.documents import json_problem, json_size, validation_sentence
from redrive.errors import (
    ApprovalNeeded,
    ApprovalNotFound,
    BulkNotFound,
    BulkRefused,
    InvalidInput,
    PlanChanged,
    SameApprover,
    TooLarge,
    Unavailable,
    UnsafeEffects,
)
from redrive.fairness import turn_of
from redrive.keys import check_identifiers, new_request_id
from redrive.rpc_errors import unavailable
from redrive.visibility import search_attributes
from redrive.worker_queries import ask

Planner = Callable[[BulkCommand], Awaitable[BulkPlan]]
Approver = Callable[[Approval], Awaitable[None]]

ANSWER_TIMEOUT = timedelta(seconds=30)
RETRY_INTERVAL = timedelta(milliseconds=200)
_ERRORS = {
    error.code: error
    for error in (
        PlanChanged,
        UnsafeEffects,
        ApprovalNeeded,
        ApprovalNotFound,
        SameApprover,
        InvalidInput,
        BulkNotFound,
    )
}


class _NotReady(Exception):
    """The workflow ended before the command reached it: a start can be sent again."""


class BulkOperations:
    """Send one command to many dead letters."""

    def __init__(self, client: Client, task_queue: str, *, approvals: bool = False) -> None:
        """Use a connected client. With `approvals` every start demands another person's approval.

        A worker demands it if its own settings or the start do: neither side can waive it for the other.
        """
        self._client = client
        self._task_queue = task_queue
        self._approvals = approvals

    async def plan(self, command: BulkCommand, planner: Planner | None = None) -> BulkPlan:
        """Return what a bulk operation would do; its hash stands for the membership and the command.

        A process that has the database plans by itself (`planner`); without one a worker is asked.
        """
        document = command.model_dump(mode="json")
        problem, size = json_problem(document), json_size(document)
        if problem:
            raise InvalidInput(f"the command{problem}")
        if size > PAYLOAD_LIMIT:
            raise TooLarge(f"the command: {size} bytes; the limit is {PAYLOAD_LIMIT}")
        plan = await (planner or self._ask_plan)(command)
        return plan.model_copy(update={"approval_needed": plan.approval_needed or self._approvals})

    async def _ask_plan(self, command: BulkCommand) -> BulkPlan:
        answer: PlanAnswer = await self._ask(Workflow.PLAN_BULK, PlanAnswer, command)
        if answer.plan is None:
            raise _ERRORS.get(answer.code or "", InvalidInput)(answer.problem or "there is no plan")
        return answer.plan

    async def approve(
        self,
        plan_hash: str,
        approver: Approver | None = None,
        /,
        *,
        tenant: str,
        approved_by: str,
        reason: str,
        person: str | None = None,
    ) -> None:
        """Approve a plan whose start waits for it, or raise (needed with `REDRIVE_APPROVALS=on`).

        `person` names who is responsible, where several names may belong to one person. A process that has the database
        records it by itself (`approver`); without one a worker is asked.
        """
        fields = {"tenant": tenant, "plan_hash": plan_hash, "approved_by": approved_by, "reason": reason}
        await (approver or self._ask_approval)(_made(Approval, **fields, person=person))

    async def _ask_approval(self, approval: Approval) -> None:
        answer: ApprovalAnswer = await self._ask(Workflow.APPROVE_BULK, ApprovalAnswer, approval)
        if answer.problem is not None:
            raise _ERRORS.get(answer.code or "", InvalidInput)(answer.problem)

    async def start(
        self,
        plan: BulkPlan,
        *,
        requested_by: str,
        reason: str,
        allow_unsafe: bool = False,
        request_id: str | None = None,
        person: str | None = None,
    ) -> BulkAnswer:
        """Start what was planned, or raise: `PlanChanged` if the dead letters are no longer those of the plan.

        The same request id again is the same bulk operation, which continues if its workflow was terminated. With
        `REDRIVE_APPROVALS=on` a start asks for another person's approval (`ApprovalNeeded`), and succeeds after that.
        """
        check_identifiers(requested_by=requested_by, request_id=request_id)
        start = _made(
            BulkStart,
            request_id=request_id or new_request_id(),
            command=plan.command,
            plan_hash=plan.hash,
            requested_by=requested_by,
            reason=reason,
            allow_unsafe=allow_unsafe,
            needs_approval=self._approvals,
            person=person,
        )
        return _accepted(await self._given(start))

    async def _given(self, start: BulkStart) -> BulkAnswer:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT.total_seconds()):
                while True:
                    with contextlib.suppress(_NotReady):
                        return await self._give(start)
                    await asyncio.sleep(RETRY_INTERVAL.total_seconds())
        except (TimeoutError, RPCError, WorkflowUpdateRPCTimeoutOrCancelledError, WorkflowUpdateFailedError) as error:
            raise Unavailable(
                f"no answer from bulk operation {start.bulk_id!r} ({type(error).__name__}): it may begin yet; "
                f"start it again with request id {start.request_id!r}"
            ) from error

    async def _give(self, start: BulkStart) -> BulkAnswer:
        operation: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            Workflow.BULK_REPLAY,
            start,
            id=start.bulk_id,
            task_queue=self._task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            search_attributes=search_attributes(tenant=start.command.tenant),
            static_summary=f"{start.command.verb} in tenant {start.command.tenant}",
            priority=turn_of(start.command.tenant),
        )
        try:
            answer: BulkAnswer = await self._client.execute_update_with_start_workflow(
                BulkControl.START.value,
                BulkBegin(action_hash=start.command.action_hash),
                start_workflow_operation=operation,
                result_type=BulkAnswer,
            )
        except RPCError as error:
            if error.status in {RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION}:
                raise _NotReady from error
            raise
        return answer

    async def pause(self, bulk_id: str, *, tenant: str, requested_by: str, reason: str) -> BulkAnswer:
        """Send nothing more for now; commands under way finish."""
        command = _made(BulkControlInput, tenant=tenant, requested_by=requested_by, reason=reason)
        return await self._control(bulk_id, BulkControl.PAUSE, command)

    async def resume(self, bulk_id: str, *, tenant: str, requested_by: str, reason: str) -> BulkAnswer:
        """Continue after a pause."""
        command = _made(BulkControlInput, tenant=tenant, requested_by=requested_by, reason=reason)
        return await self._control(bulk_id, BulkControl.RESUME, command)

    async def stop(self, bulk_id: str, *, tenant: str, requested_by: str, reason: str) -> BulkAnswer:
        """End it: commands under way finish, the rest is skipped."""
        command = _made(BulkControlInput, tenant=tenant, requested_by=requested_by, reason=reason)
        return await self._control(bulk_id, BulkControl.STOP, command)

    async def _control(self, bulk_id: str, control: BulkControl, command: BulkControlInput) -> BulkAnswer:
        try:
            answer: BulkAnswer = await self._client.get_workflow_handle(bulk_id).execute_update(
                control.value, command, result_type=BulkAnswer, rpc_timeout=ANSWER_TIMEOUT
            )
        except RPCError as error:
            if error.status in {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT}:
                raise BulkNotFound(
                    f"no bulk operation {bulk_id[:80]!r} is under way: it has ended, or its workflow is gone; "
                    "if its record is open, `redrive reconcile --repair` ends it"
                ) from error
            raise unavailable(error) from error
        except (WorkflowUpdateRPCTimeoutOrCancelledError, WorkflowUpdateFailedError) as error:
            raise Unavailable(f"no answer from bulk operation {bulk_id!r} to {control}: give it again") from error
        return _accepted(answer)

    async def get(self, bulk_id: str, *, tenant: str) -> BulkView:
        """Return a bulk operation and its progress."""
        asked = _made(BulkRequest, tenant=tenant, bulk_id=bulk_id)
        view: BulkView | None = await self._ask(Workflow.DESCRIBE_BULK, BulkView | None, asked)
        if view is None:
            raise BulkNotFound(f"no bulk operation has the id {bulk_id[:80]!r} in tenant {tenant!r}")
        return view

    async def items(
        self,
        bulk_id: str,
        *,
        tenant: str,
        status: ItemStatus | None = None,
        limit: int = 100,
        after: int | None = None,
    ) -> BulkItems:
        """Return items and their outcomes, after the end of the previous page."""
        asked = _made(ItemsRequest, tenant=tenant, bulk_id=bulk_id, status=status, limit=limit, after=after)
        items: BulkItems = await self._ask(Workflow.LIST_BULK_ITEMS, BulkItems, asked)
        return items

    async def _ask(self, workflow: Workflow, answer: Any, given: Message) -> Any:
        return await ask(self._client, self._task_queue, workflow, answer, given, timeout=ANSWER_TIMEOUT)


def _accepted(answer: BulkAnswer) -> BulkAnswer:
    if answer.accepted:
        return answer
    raise _ERRORS.get(answer.code or "", BulkRefused)(answer.message)


def _made(kind: type[Any], **fields: Any) -> Any:
    try:
        return kind(**fields)
    except ValidationError as error:
        raise InvalidInput(validation_sentence(error)) from error
