"""Why a step's activity failed, derived from what Temporal reports, and how many failed attempts a run carries. Pure.

The step activity classifies its own errors. This is the second classifier, for what an activity cannot see: a dead
worker, a timeout, arguments or results that could not be carried.

A run's state must fit into one Temporal message with its document, or the run could neither return nor continue as new.
What is dropped here is still in the history.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

from pydantic import TypeAdapter, ValidationError
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    FailureError,
    RetryState,
    TimeoutType,
)
from temporalio.exceptions import TimeoutError as TemporalTimeoutError

from redrive.categories import Category
from redrive.contracts import (
    ATTEMPT_TEXT_LIMIT,
    CATEGORY_DETAIL,
    ERROR_TEXT_LIMIT,
    Attempt,
    AttemptError,
    FailedCycle,
    StepInput,
    StepState,
    StepStatus,
)
from redrive.fairness import CROWDED_OUT

_CATEGORIES = frozenset(Category)
_ATTEMPTS = TypeAdapter(list[Attempt])
_TYPES = {
    "NotFoundError": Category.UNKNOWN_MODULE,
    "PydanticSerializationError": Category.SERIALIZATION,
    "PayloadsTooLarge": Category.TOO_LARGE,
    "PayloadSizeError": Category.TOO_LARGE,
}
_TIMEOUTS = {
    TimeoutType.START_TO_CLOSE: "took longer than its deadline, or its worker died",
    TimeoutType.HEARTBEAT: "stopped reporting: its worker died or was blocked",
    TimeoutType.SCHEDULE_TO_CLOSE: "used up the time that its policy allows for all attempts",
    TimeoutType.SCHEDULE_TO_START: "was not picked up by any worker",
}
ATTEMPTS_BUDGET = 56 * 1024


def failed_cycle(error: ActivityError, step: StepState, now: datetime) -> FailedCycle:
    """Return how a step was exhausted."""
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, ApplicationError) and (details := _details(cause)):
            return _told(step.name, step.cycle, cause, details)
    category, kind, message = _reason(causes)
    last = Attempt(attempt=0, at=now, category=category, error_type=kind, error=message[:ATTEMPT_TEXT_LIMIT])
    return FailedCycle(
        step=step.name,
        cycle=step.cycle,
        category=category,
        error_type=kind,
        message=message[:ERROR_TEXT_LIMIT],
        attempts=_with_last(_heartbeat_attempts(causes), last, error, step),
    )


def failed_fast(error: FailureError, given: StepInput) -> FailedCycle | None:
    """Return how the first attempt failed inside the workflow task; None if it did not report anything."""
    details = _details(error) if isinstance(error, ApplicationError) else None
    if not isinstance(error, ApplicationError) or details is None:
        return None
    return _told(given.step.name, given.cycle, error, details)


def attempts_when_crowded_out(error: FailureError) -> list[Attempt] | None:
    """Return the attempts so far of a step that its worker had no slot for, or None if it failed otherwise."""
    # A local activity's error is not wrapped.
    cause = error.__cause__ if isinstance(error, ActivityError) else error
    if not isinstance(cause, ApplicationError) or cause.type != CROWDED_OUT:
        return None
    return _ATTEMPTS.validate_python(cause.details[0]) if cause.details else []


def _reason(causes: Sequence[BaseException]) -> tuple[Category, str, str]:
    """Return the category, type and text of a failure that the step activity did not report itself."""
    for cause in causes:
        if isinstance(cause, ApplicationError):
            return _category(cause), cause.type or "ApplicationError", cause.message
    for cause in causes:
        if isinstance(cause, TemporalTimeoutError):
            return Category.TIMEOUT, "TimeoutError", _timeout_text(cause)
    return Category.UNKNOWN, type(causes[-1]).__name__, str(causes[-1])


def reason_of(error: BaseException) -> tuple[Category, str, str]:
    """Return the category, type and text of any operation's failure."""
    is_wrapper = isinstance(error, ActivityError | ChildWorkflowError)
    causes = list(_causes(error))
    return _reason(causes if is_wrapper or error.__cause__ is None else [error, *causes])


def _with_last(reported: list[Attempt], last: Attempt, error: ActivityError, step: StepState) -> list[Attempt]:
    """Add the attempt that ended without a report: only Temporal counted it."""
    number = reported[-1].attempt + 1 if reported else 1
    if error.retry_state is RetryState.MAXIMUM_ATTEMPTS_REACHED:
        number = max(number, step.max_attempts)
    return [*reported, last.model_copy(update={"attempt": number})]


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause = error.__cause__
    if cause is None:
        yield error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _category(error: ApplicationError) -> Category:
    for detail in error.details:
        told = detail.get(CATEGORY_DETAIL) if isinstance(detail, dict) else None
        if isinstance(told, str) and told in _CATEGORIES:
            return Category(told)
    if error.type is None and "decod" in error.message:
        return Category.VALIDATION
    return _TYPES.get(error.type or "", Category.UNKNOWN)


def _details(error: ApplicationError) -> AttemptError | None:
    try:
        return AttemptError.model_validate(error.details[0]) if error.details else None
    except ValidationError:
        return None


def _heartbeat_attempts(causes: Sequence[BaseException]) -> list[Attempt]:
    for cause in causes:
        if isinstance(cause, TemporalTimeoutError) and cause.last_heartbeat_details:
            try:
                return _ATTEMPTS.validate_python(cause.last_heartbeat_details[0])
            except ValidationError:
                continue
    return []


def _timeout_text(error: TemporalTimeoutError) -> str:
    return f"the step {_TIMEOUTS.get(error.type, 'timed out') if error.type is not None else 'timed out'}"


def _told(step: str, cycle: int, error: ApplicationError, details: AttemptError) -> FailedCycle:
    """Return a cycle as its last attempt reported it."""
    return FailedCycle(
        step=step,
        cycle=cycle,
        category=Category(error.type) if error.type in _CATEGORIES else Category.UNKNOWN,
        message=error.message[:ERROR_TEXT_LIMIT],
        **dict(details),
    )


def drop_oldest_attempts(steps: Sequence[StepState], budget: int = ATTEMPTS_BUDGET) -> None:
    """Drop the attempts of the earliest finished steps until the rest fits the budget."""
    healed = [step for step in steps if step.attempts and step.status is StepStatus.SUCCESS]
    for step in reversed(healed):
        budget -= sum(len(entry.model_dump_json()) for entry in step.attempts)
        if budget < 0:
            step.attempts = []
