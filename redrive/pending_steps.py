"""What Temporal knows of a run's step while its activity is being retried, and the run's workflow does not."""

from datetime import UTC
from typing import Final

from pydantic import ConfigDict, TypeAdapter, ValidationError
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import WorkflowExecution, WorkflowExecutionDescription

from redrive.contracts import Activity, Attempt, RunView, StepState, StepStatus

_ATTEMPTS: Final = TypeAdapter(list[Attempt], config=ConfigDict(defer_build=True))


def with_pending(view: RunView, description: WorkflowExecution) -> RunView:
    """Add to a run's view what its workflow cannot know while an activity is being retried."""
    if not isinstance(description, WorkflowExecutionDescription):
        return view
    pending = [
        activity
        for activity in description.raw_description.pending_activities
        if activity.activity_type.name == Activity.RUN_STEP
    ]
    running = [step for step in view.steps if step.status is StepStatus.RUNNING]
    for step, activity in zip(running, pending, strict=False):
        _fill(step, activity)
    return view


def _fill(step: StepState, activity: PendingActivityInfo) -> None:
    step.attempt = activity.attempt
    step.attempts = _reported(activity)
    waits = activity.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED and activity.attempt > 1
    if waits:
        step.status = StepStatus.RETRYING
        step.attempt = activity.attempt - 1
        if activity.HasField("next_attempt_schedule_time"):
            step.next_retry_at = activity.next_attempt_schedule_time.ToDatetime(tzinfo=UTC)


def _reported(activity: PendingActivityInfo) -> list[Attempt]:
    """Read the attempts from the heartbeat details, where the step activity keeps them."""
    try:
        return _ATTEMPTS.validate_json(activity.heartbeat_details.payloads[0].data)
    except (IndexError, ValidationError):
        return []
