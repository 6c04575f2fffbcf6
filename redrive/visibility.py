"""Runs as Temporal's lists show them. Pure.

We never re-index a run that succeeded (that would cost a write): its status is Temporal's own.
"""

from temporalio.client import WorkflowExecution, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey

from redrive.contracts import RunStatus, RunSummary, SearchAttribute, Workflow

_STATUSES = frozenset(RunStatus)
_CLOSED = {
    WorkflowExecutionStatus.COMPLETED: RunStatus.SUCCESS,
    WorkflowExecutionStatus.FAILED: RunStatus.FAILED,
    WorkflowExecutionStatus.TIMED_OUT: RunStatus.FAILED,
    WorkflowExecutionStatus.TERMINATED: RunStatus.FAILED,
    WorkflowExecutionStatus.CANCELED: RunStatus.CANCELED,
}
_QUERIES = {
    RunStatus.SUCCESS: "ExecutionStatus = 'Completed'",
    RunStatus.FAILED: "ExecutionStatus IN ('Failed', 'TimedOut', 'Terminated')",
    RunStatus.CANCELED: "ExecutionStatus = 'Canceled'",
}


def execution_status(execution: WorkflowExecution) -> RunStatus:
    """Derive a run's status from Temporal's and, while it is open, from its search attribute."""
    if execution.status in _CLOSED:
        return _CLOSED[execution.status]
    shown = _attribute(execution, SearchAttribute.STATUS)
    return RunStatus(shown) if shown in _STATUSES else RunStatus.RUNNING


def summary(execution: WorkflowExecution) -> RunSummary:
    """Return a run as one row of a list."""
    return RunSummary(
        run_id=execution.id,
        tenant=_attribute(execution, SearchAttribute.TENANT) or "",
        pipeline=_attribute(execution, SearchAttribute.PIPELINE) or "",
        status=execution_status(execution),
        failed_step=_attribute(execution, SearchAttribute.FAILED_STEP),
        category=_attribute(execution, SearchAttribute.CATEGORY),
        started_at=execution.start_time,
        closed_at=execution.close_time,
    )


def runs_query(*, tenant: str | None, status: RunStatus | None, pipeline: str | None) -> str:
    """Return the list filter for Temporal."""
    parts = [f"WorkflowType = '{Workflow.MODULE_RUN}'"]
    if tenant:
        parts.append(f"{SearchAttribute.TENANT} = {_quoted(tenant)}")
    if pipeline:
        parts.append(f"{SearchAttribute.PIPELINE} = {_quoted(pipeline)}")
    if status:
        still_open = f"ExecutionStatus = 'Running' AND {SearchAttribute.STATUS} = '{status}'"
        parts.append(_QUERIES.get(status, still_open))
    # A run that continued as new is one run: only its newest part is listed.
    parts.append("ExecutionStatus != 'ContinuedAsNew'")
    return " AND ".join(parts)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _attribute(execution: WorkflowExecution, name: SearchAttribute) -> str | None:
    return execution.typed_search_attributes.get(SearchAttributeKey.for_keyword(name))
