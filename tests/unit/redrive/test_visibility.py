"""The search attributes of runs and dead letters."""

import json
from datetime import UTC, datetime

from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflow.v1 import WorkflowExecutionInfo

from redrive.contracts import KEYWORD_LIMIT, RunStatus, RunSummary, SearchAttribute
from redrive.visibility import search_attributes, shown_value, summary, updates

BEGAN = datetime(2026, 5, 1, 10, tzinfo=UTC)


def test_values_that_are_missing_are_left_out() -> None:
    """An empty keyword would hide the one that is shown."""
    shown = search_attributes(tenant="acme", pipeline="", status="RUNNING")
    assert {name: shown_value(shown, name) for name in SearchAttribute} == {
        SearchAttribute.TENANT: "acme",
        SearchAttribute.PIPELINE: None,
        SearchAttribute.STATUS: "RUNNING",
        SearchAttribute.FAILED_STEP: None,
        SearchAttribute.CATEGORY: None,
    }


def test_a_value_that_temporal_would_refuse_is_cut() -> None:
    """It would fail the workflow task again and again."""
    shown = search_attributes(tenant="acme", pipeline="p" * (KEYWORD_LIMIT + 1))
    assert shown_value(shown, SearchAttribute.PIPELINE) == "p" * KEYWORD_LIMIT


def test_what_is_shown_is_not_written_again() -> None:
    """Each upsert is an event in the history."""
    shown = search_attributes(tenant="acme", status="pending")
    [update] = updates(search_attributes(tenant="acme", status="replayed"), shown)
    assert (update.key.name, update.value) == (SearchAttribute.STATUS, "replayed")
    assert updates(shown, shown) == []


def listed(status: int, **attributes: object) -> WorkflowExecutionInfo:
    """A run as Temporal lists it."""
    info = WorkflowExecutionInfo(status=WorkflowExecutionStatus.ValueType(status))
    info.execution.workflow_id = "run-1"
    info.start_time.FromDatetime(BEGAN)
    for name, value in attributes.items():
        info.search_attributes.indexed_fields[SearchAttribute[name]].data = json.dumps(value).encode()
    return info


def test_a_run_in_a_list_is_read_from_its_search_attributes() -> None:
    """Its own status counts while it is open; a value that is no keyword is none of ours."""
    running = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
    row = summary(listed(running, TENANT="acme", PIPELINE="order", STATUS="DLQ_PENDING", FAILED_STEP="ship"))
    assert row == RunSummary(
        run_id="run-1",
        tenant="acme",
        pipeline="order",
        status=RunStatus.DLQ_PENDING,
        failed_step="ship",
        started_at=BEGAN,
    )
    odd = summary(listed(running, TENANT=["acme"], STATUS="of another product"))
    assert (odd.tenant, odd.status) == ("", RunStatus.RUNNING)


def test_temporal_decides_how_a_run_has_ended() -> None:
    """The status that it showed last is that of its open time."""
    ended = listed(WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TERMINATED, STATUS="DLQ_PENDING")
    ended.close_time.FromDatetime(BEGAN)
    assert (summary(ended).status, summary(ended).closed_at) == (RunStatus.FAILED, BEGAN)
