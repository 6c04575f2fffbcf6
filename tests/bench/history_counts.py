"""Counts a workflow's history: tasks, events, bytes, and billable actions of Temporal Cloud. Pure.

What counts as an action: https://docs.temporal.io/cloud/actions, as of November 2026. Heartbeats and queries are not in
a history, and are not counted: a run that succeeds at once makes none.
"""

from collections.abc import Iterable
from typing import NamedTuple

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

# One action each. A signal that comes with the start is counted with it.
_ACTIONS = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_OPTIONS_UPDATED,
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
    EventType.EVENT_TYPE_TIMER_STARTED,
    EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES,
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED,
}
_VERSIONS = {"TemporalChangeVersion"}


class Count(NamedTuple):
    """What histories hold."""

    tasks: int
    events: int
    bytes: int
    actions: int


def counted(events: Iterable[HistoryEvent]) -> Count:
    """Count one history."""
    every = list(events)
    tasks = [event for event in every if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED]
    return Count(len(tasks), len(every), sum(event.ByteSize() for event in every), _actions(every))


def _actions(events: list[HistoryEvent]) -> int:
    """Count the actions that Temporal Cloud would bill for a history."""
    total = sum(event.event_type in _ACTIONS and not _is_free(event) for event in events)
    # All markers of one workflow task are one action: local activities, and versions.
    total += len(
        {
            event.marker_recorded_event_attributes.workflow_task_completed_event_id
            for event in events
            if event.event_type == EventType.EVENT_TYPE_MARKER_RECORDED
        }
    )
    for event in events:
        started = event.activity_task_started_event_attributes
        metering = event.workflow_task_completed_event_attributes.metering_metadata
        total += max(0, started.attempt - 1) + metering.nonfirst_local_activity_execution_attempts
    return total


def _is_free(event: HistoryEvent) -> bool:
    if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
        return event.event_id == 2
    upserted = event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields
    return bool(upserted) and upserted.keys() <= _VERSIONS
