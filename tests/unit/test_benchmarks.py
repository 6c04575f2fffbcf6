"""The benchmarks' page shows what was measured, and histories are counted as Temporal Cloud bills them."""

import xml.etree.ElementTree as ET
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from tests.bench.history_counts import counted
from tests.bench.page import CHART, PAGE, chart, load, rendered


def test_the_page_and_its_chart_show_the_stored_figures() -> None:
    """Tables and chart are rendered from docs/benchmarks.json: `python -m tests.bench.page` does it."""
    report = load()
    page = PAGE.read_text()
    assert rendered(page, report) == page
    assert chart(report) == CHART.read_text()


def test_the_chart_needs_nothing_from_elsewhere() -> None:
    """It is well-formed, and loads no font, image or style."""
    text = CHART.read_text()
    assert ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314  # it is our own
    assert "url(" not in text
    assert "href" not in text
    assert "@import" not in text


def event(number: int, kind: str, **attributes: Any) -> HistoryEvent:
    """Return an event with attributes of its kind."""
    made = HistoryEvent(event_id=number, event_type=EventType.Value(f"EVENT_TYPE_{kind.upper()}"))
    return ParseDict({f"{kind}_event_attributes": attributes}, made) if attributes else made


STARTED = event(1, "workflow_execution_started")
VERSIONS: dict[str, Any] = {"search_attributes": {"indexed_fields": {"TemporalChangeVersion": {}}}}
STATUS: dict[str, Any] = {"search_attributes": {"indexed_fields": {"RedriveStatus": {}, "TemporalChangeVersion": {}}}}


@pytest.mark.parametrize(
    ("events", "actions"),
    [
        ([STARTED], 1),
        ([STARTED, event(2, "workflow_execution_signaled")], 1),
        ([STARTED, event(5, "workflow_execution_signaled")], 2),
        ([STARTED, event(5, "activity_task_scheduled"), event(6, "activity_task_started", attempt=1)], 2),
        ([STARTED, event(5, "activity_task_scheduled"), event(6, "activity_task_started", attempt=3)], 4),
        ([event(n, "marker_recorded", workflow_task_completed_event_id=4) for n in (5, 6)], 1),
        ([event(n, "marker_recorded", workflow_task_completed_event_id=n - 1) for n in (5, 9)], 2),
        ([event(5, "upsert_workflow_search_attributes", **VERSIONS)], 0),
        ([event(5, "upsert_workflow_search_attributes", **STATUS)], 1),
        ([event(5, "workflow_task_completed", metering_metadata={"nonfirst_local_activity_execution_attempts": 2})], 2),
    ],
    ids=[
        "start",
        "signal with start",
        "signal",
        "activity",
        "activity with two retries",
        "local activities of one task",
        "local activities of two tasks",
        "version alone",
        "search attributes",
        "retries of local activities",
    ],
)
def test_actions_are_counted_as_they_are_billed(events: list[HistoryEvent], actions: int) -> None:
    """Each kind of event counts what Temporal's list says."""
    assert counted(events).actions == actions
