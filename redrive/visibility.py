"""Runs and dead letters in Temporal's lists: the search attributes that they get, and how a list is read. Pure.

We never re-index a run that succeeded (that would cost a write): its status is Temporal's own.
"""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.common import SearchAttributeKey, SearchAttributePair, SearchAttributeUpdate, TypedSearchAttributes

from redrive.names import (
    KEYWORD_LIMIT,
    LABELS_ATTRIBUTE,
    NAME_PATTERN,
    RunStatus,
    RunSummary,
    SearchAttribute,
    Workflow,
    label_pairs,
)

if TYPE_CHECKING:
    from temporalio.client import WorkflowExecution

_LABELS = SearchAttributeKey.for_keyword_list(LABELS_ATTRIBUTE)
_STATUSES = frozenset(RunStatus)
_CLOSED = {
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED: RunStatus.SUCCESS,
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_FAILED: RunStatus.FAILED,
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TIMED_OUT: RunStatus.FAILED,
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TERMINATED: RunStatus.FAILED,
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_CANCELED: RunStatus.CANCELED,
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


def with_labels(shown: TypedSearchAttributes, labels: Mapping[str, str]) -> TypedSearchAttributes:
    """Return the values, and a run's labels if it has any."""
    if not labels:
        return shown
    pairs = [f"{name}={value}" for name, value in sorted(labels.items())]
    return TypedSearchAttributes([*shown, SearchAttributePair(_LABELS, pairs)])


def updates(
    wanted: TypedSearchAttributes, shown: TypedSearchAttributes = TypedSearchAttributes.empty
) -> list[SearchAttributeUpdate[str]]:
    """Return what to upsert: the values that are not shown already."""
    return [pair.key.value_set(pair.value) for pair in wanted if shown.get(pair.key) != pair.value]


def shown_value(shown: TypedSearchAttributes, name: SearchAttribute) -> str | None:
    """Return the value of a search attribute, if it has one."""
    return shown.get(_key(name))


def tenant_of(shown: TypedSearchAttributes) -> str | None:
    """Return the tenant that a workflow says it has, if that is a tenant's name."""
    tenant = shown_value(shown, SearchAttribute.TENANT)
    return tenant if tenant and re.fullmatch(NAME_PATTERN, tenant) else None


def execution_status(execution: "WorkflowExecution") -> RunStatus:
    """Derive a run's status from Temporal's and, while it is open, from its search attribute."""
    return _status(execution.raw_info)


def _status(execution: WorkflowExecutionInfo) -> RunStatus:
    if execution.status in _CLOSED:
        return _CLOSED[execution.status]
    status = _listed_value(execution, SearchAttribute.STATUS)
    return RunStatus(status) if status in _STATUSES else RunStatus.RUNNING


def summary(execution: WorkflowExecutionInfo) -> RunSummary:
    """Return a run as one row of a list."""
    return RunSummary(
        run_id=execution.execution.workflow_id,
        tenant=_listed_value(execution, SearchAttribute.TENANT) or "",
        pipeline=_listed_value(execution, SearchAttribute.PIPELINE) or "",
        status=_status(execution),
        failed_step=_listed_value(execution, SearchAttribute.FAILED_STEP),
        category=_listed_value(execution, SearchAttribute.CATEGORY),
        started_at=execution.start_time.ToDatetime(UTC),
        closed_at=execution.close_time.ToDatetime(UTC) if execution.HasField("close_time") else None,
    )


def _listed_value(execution: WorkflowExecutionInfo, name: SearchAttribute) -> str | None:
    fields = execution.search_attributes.indexed_fields
    value = json.loads(fields[name].data) if name in fields else None
    return value if isinstance(value, str) else None


def runs_query(
    *,
    tenant: str | None,
    status: RunStatus | None,
    pipeline: str | None,
    label: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    run_ids: Sequence[str] | None = None,
) -> str:
    """Return the list filter for Temporal. `since` and `until` are about the start; `run_ids` is not empty."""
    parts = [f"WorkflowType = '{Workflow.MODULE_RUN}'"]
    if since:
        parts.append(f"StartTime >= {quoted(since.isoformat())}")
    if until:
        parts.append(f"StartTime < {quoted(until.isoformat())}")
    if run_ids is not None:
        parts.append(f"WorkflowId IN ({', '.join(quoted(each) for each in run_ids)})")
    if tenant:
        parts.append(f"{SearchAttribute.TENANT} = {quoted(tenant)}")
    if pipeline:
        parts.append(f"{SearchAttribute.PIPELINE} = {quoted(pipeline)}")
    parts += [f"{LABELS_ATTRIBUTE} = {quoted(f'{name}={value}')}" for name, value in label_pairs(label)]
    if status:
        still_open = f"ExecutionStatus = 'Running' AND {SearchAttribute.STATUS} = '{status}'"
        parts.append(_QUERIES.get(status, still_open))
    # A run that continued as new is one run: only its newest part is listed.
    parts.append("ExecutionStatus != 'ContinuedAsNew'")
    return " AND ".join(parts)


def quoted(value: str) -> str:
    """Return a value as a literal of a list filter."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


@functools.cache
def _key(name: SearchAttribute) -> SearchAttributeKey[str]:
    return SearchAttributeKey.for_keyword(name)
