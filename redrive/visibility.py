"""Runs and dead letters in Temporal's lists: the search attributes that they get, and how a list is read. Pure.

We never re-index a run that succeeded (that would cost a write): its status is Temporal's own.
"""

from temporalio.client import WorkflowExecution, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey, SearchAttributePair, SearchAttributeUpdate, TypedSearchAttributes

from redrive.contracts import KEYWORD_LIMIT, RunStatus, RunSummary, SearchAttribute, Workflow

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


def search_attributes(
    *,
    tenant: str | None,
    pipeline: str | None = None,
    status: str | None = None,
    failed_step: str | None = None,
    category: str | None = None,
) -> TypedSearchAttributes:
    """Return the values that there are. They are cut: one that is too long would fail a workflow task forever."""
    values = {
        SearchAttribute.TENANT: tenant,
        SearchAttribute.PIPELINE: pipeline,
        SearchAttribute.STATUS: status,
        SearchAttribute.FAILED_STEP: failed_step,
        SearchAttribute.CATEGORY: category,
    }
    return TypedSearchAttributes(
        [SearchAttributePair(_key(name), str(value)[:KEYWORD_LIMIT]) for name, value in values.items() if value]
    )


def updates(
    wanted: TypedSearchAttributes, shown: TypedSearchAttributes = TypedSearchAttributes.empty
) -> list[SearchAttributeUpdate[str]]:
    """Return what to upsert: the values that are not shown already."""
    return [pair.key.value_set(pair.value) for pair in wanted if shown.get(pair.key) != pair.value]


def shown_value(shown: TypedSearchAttributes, name: SearchAttribute) -> str | None:
    """Return the value of a search attribute, if it has one."""
    return shown.get(_key(name))


def execution_status(execution: WorkflowExecution) -> RunStatus:
    """Derive a run's status from Temporal's and, while it is open, from its search attribute."""
    if execution.status in _CLOSED:
        return _CLOSED[execution.status]
    status = shown_value(execution.typed_search_attributes, SearchAttribute.STATUS)
    return RunStatus(status) if status in _STATUSES else RunStatus.RUNNING


def summary(execution: WorkflowExecution) -> RunSummary:
    """Return a run as one row of a list."""
    shown = execution.typed_search_attributes
    return RunSummary(
        run_id=execution.id,
        tenant=shown_value(shown, SearchAttribute.TENANT) or "",
        pipeline=shown_value(shown, SearchAttribute.PIPELINE) or "",
        status=execution_status(execution),
        failed_step=shown_value(shown, SearchAttribute.FAILED_STEP),
        category=shown_value(shown, SearchAttribute.CATEGORY),
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


def _key(name: SearchAttribute) -> SearchAttributeKey[str]:
    return SearchAttributeKey.for_keyword(name)
