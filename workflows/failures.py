"""Why a step's activity failed, told from what Temporal reports. Pure.

The step activity classifies its own errors. This is the second classifier, for what an activity cannot see: a dead
worker, a timeout, arguments or results that could not be carried.
"""

from collections.abc import Iterator, Sequence

from pydantic import TypeAdapter, ValidationError
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType
from temporalio.exceptions import TimeoutError as TemporalTimeoutError

from redrive.contracts import ERROR_TEXT_LIMIT, Attempt, AttemptError, FailedCycle, StepState
from redrive.errors import Category

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


def failed_cycle(error: ActivityError, step: StepState) -> FailedCycle:
    """Tell how a step was exhausted."""
    causes = list(_causes(error))
    timeouts = [cause for cause in causes if isinstance(cause, TemporalTimeoutError)]
    for cause in causes:
        if isinstance(cause, ApplicationError):
            return _from_application_error(cause, step, _heartbeat_attempts(timeouts))
    if timeouts:
        return _cycle(step, Category.TIMEOUT, "TimeoutError", _timeout_text(timeouts[0]), _heartbeat_attempts(timeouts))
    root = causes[-1]
    return _cycle(step, Category.UNKNOWN, type(root).__name__, str(root), [])


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause = error.__cause__
    if cause is None:
        yield error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _from_application_error(error: ApplicationError, step: StepState, reported: list[Attempt]) -> FailedCycle:
    details = _details(error)
    if details is None:
        category = _TYPES.get(error.type or "", Category.UNKNOWN)
        if error.type is None and "decod" in error.message:
            category = Category.VALIDATION
        return _cycle(step, category, error.type or "ApplicationError", error.message, reported)
    category = Category(error.type) if error.type in _CATEGORIES else Category.UNKNOWN
    cycle = _cycle(step, category, details.error_type, error.message, details.attempts)
    return cycle.model_copy(update={"stack": details.stack, "generation": details.generation})


def _details(error: ApplicationError) -> AttemptError | None:
    try:
        return AttemptError.model_validate(error.details[0]) if error.details else None
    except ValidationError:
        return None


def _heartbeat_attempts(timeouts: Sequence[TemporalTimeoutError]) -> list[Attempt]:
    for timeout in timeouts:
        if timeout.last_heartbeat_details:
            try:
                return _ATTEMPTS.validate_python(timeout.last_heartbeat_details[0])
            except ValidationError:
                continue
    return []


def _timeout_text(error: TemporalTimeoutError) -> str:
    return f"the step {_TIMEOUTS.get(error.type, 'timed out') if error.type is not None else 'timed out'}"


def _cycle(step: StepState, category: Category, kind: str, message: str, attempts: list[Attempt]) -> FailedCycle:
    return FailedCycle(
        step=step.name,
        cycle=step.cycle,
        category=category,
        error_type=kind,
        message=message[:ERROR_TEXT_LIMIT],
        attempts=attempts,
    )
