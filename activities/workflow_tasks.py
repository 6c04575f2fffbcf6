"""Workflows whose workflow tasks fail over and over: a bug in their code, or histories that it cannot replay.

Such a workflow can report nothing, and says Running. Temporal marks it with the search attribute
`TemporalReportedProblems`, and removes that when a task succeeds. Each marked one gets a dead letter, which is closed
when the mark is gone. Nothing here changes a workflow.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution as ExecutionName
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError, RPCStatusCode

from redrive.activities.dead_letters import LetterReports
from redrive.categories import Category
from redrive.contracts import ATTEMPT_TEXT_LIMIT, DEFAULT_TENANT, ERROR_TEXT_LIMIT, Attempt, FailedCycle
from redrive.dead_letters import (
    Ending,
    Exhausted,
    ForeignPlace,
    LetterId,
    LetterState,
    OperationKind,
    OperationOptions,
    Outcome,
)
from redrive.errors import Unavailable
from redrive.logs import get_logger
from redrive.postgres.tenancy import Pool
from redrive.redaction.redactor import Redactor
from redrive.run_probe import describe
from redrive.store.dead_letters.records import load_state, open_workflow_tasks
from redrive.visibility import tenant_of

PROBLEMS: Final = SearchAttributeKey.for_keyword_list("TemporalReportedProblems")
FAILED: Final = "category=WorkflowTaskFailed"
# The maximum number of workflows that one sweep looks at; the next one takes the others.
MOST: Final = 1000
MOST_OPEN: Final = 10_000
_NUMBER: Final = 0
_EVENTS: Final = 50
_CAUSE_PREFIX: Final = "WORKFLOW_TASK_FAILED_CAUSE_"

log = get_logger(__name__)


class WorkflowTasks:
    """Keep the dead letters of workflows whose tasks fail."""

    def __init__(self, client: Client, reports: LetterReports, redactor: Redactor) -> None:
        self._client = client
        self._reports = reports
        self._redactor = redactor

    async def sweep(self, pool: Pool) -> None:
        """Open and close dead letters. It may be interrupted anywhere: the next sweep continues."""
        known = await open_workflow_tasks(pool, MOST_OPEN)
        for letter in known:
            activity.heartbeat()
            await self._close_if_healed(letter)
        opened = {letter.workflow_id for letter in known}
        try:
            async for found in self._client.list_workflows(f"{PROBLEMS.name} IN ('{FAILED}')", limit=MOST):
                activity.heartbeat()
                letter = _letter(found)
                if letter.workflow_id not in opened:
                    await self._open(pool, letter)
        except RPCError as error:
            # A server that does not know the attribute.
            if error.status is not RPCStatusCode.INVALID_ARGUMENT:
                raise

    async def _close_if_healed(self, letter: LetterId) -> None:
        """Close the dead letter of a workflow that goes on. One that has ended is the reconciliation's."""
        description = await self._description(letter)
        if description is None or description.status is not WorkflowExecutionStatus.RUNNING or _fails(description):
            return
        outcome = Outcome(ending=Ending.SUCCEEDED, revision=_revision())
        await self._reports.report_outcome(letter, outcome, None)

    async def _open(self, pool: Pool, letter: LetterId) -> None:
        """Report a workflow to its dead letter, if it still fails: lists lag behind."""
        description = await self._description(letter)
        if description is None or not _fails(description):
            return
        failure = await self._failure(letter)
        if failure is None:
            return
        state = await load_state(pool, letter)
        await self._reports.send(
            Exhausted(
                letter=letter,
                pipeline=description.workflow_type,
                cycle=self._cycle(letter, failure, _next_cycle(state)),
                correlation_id=self._redactor.text(letter.run_id),
                key=None,
                started_at=description.start_time,
                at=datetime.now(UTC),
                revision=_revision(),
                payload={},
                config=OperationOptions(kind=OperationKind.WORKFLOW_TASK, task_queue=description.task_queue),
            )
        )

    async def _description(self, letter: LetterId) -> WorkflowExecutionDescription | None:
        try:
            return await describe(self._client, letter.run_id, letter.execution)
        except Unavailable as error:
            log.warning("workflow.unreadable", tenant_id=letter.tenant, run_id=letter.run_id, error=str(error))
            return None

    async def _failure(self, letter: LetterId) -> HistoryEvent | None:
        """Return the last failure of a workflow task. Temporal writes the first of a row of failures only."""
        answer = await self._client.workflow_service.get_workflow_execution_history_reverse(
            GetWorkflowExecutionHistoryReverseRequest(
                namespace=self._client.namespace,
                execution=ExecutionName(workflow_id=letter.run_id, run_id=letter.execution or ""),
                maximum_page_size=_EVENTS,
            )
        )
        kind = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
        return next((event for event in answer.history.events if event.event_type == kind), None)

    def _cycle(self, letter: LetterId, event: HistoryEvent, cycle: int) -> FailedCycle:
        failed = event.workflow_task_failed_event_attributes
        cause = WorkflowTaskFailedCause.Name(failed.cause).removeprefix(_CAUSE_PREFIX).lower()
        kind = failed.failure.application_failure_info.type or cause
        message = self._redactor.beginning(failed.failure.message or cause, ERROR_TEXT_LIMIT)
        attempt = Attempt(
            attempt=1,
            at=event.event_time.ToDatetime(tzinfo=UTC),
            category=Category.UNKNOWN,
            error_type=kind,
            error=message[:ATTEMPT_TEXT_LIMIT],
        )
        return FailedCycle(
            step=letter.module,
            cycle=cycle,
            category=Category.UNKNOWN,
            error_type=kind,
            message=message,
            attempts=[attempt],
            stack=self._redactor.text(failed.failure.stack_trace[-ERROR_TEXT_LIMIT:]),
            build_id=failed.worker_version.build_id,
        )


def _letter(found: WorkflowExecution) -> LetterId:
    step = ForeignPlace(found.workflow_type, found.run_id, _NUMBER).step
    return LetterId(tenant=tenant_of(found.typed_search_attributes) or DEFAULT_TENANT, run_id=found.id, step=step)


def _fails(description: WorkflowExecutionDescription) -> bool:
    problems: Sequence[Any] = description.typed_search_attributes.get(PROBLEMS) or ()
    return description.status is WorkflowExecutionStatus.RUNNING and FAILED in problems


def _next_cycle(state: LetterState | None) -> int:
    """A workflow that has healed before, and fails again, opens the next cycle of its dead letter."""
    if state is None:
        return 1
    return state.cycle + 1 if state.status.closed else state.cycle


def _revision() -> int:
    return int(datetime.now(UTC).timestamp() * 1_000_000)
