"""The second classifier: what a failed activity tells of a step that could not speak for itself."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, RetryState, ServerError, TimeoutType
from temporalio.exceptions import TimeoutError as TemporalTimeoutError

from redrive.categories import Category
from redrive.contracts import CATEGORY_DETAIL, ERROR_TEXT_LIMIT, Attempt, AttemptError, StepState
from redrive.workflows.failures import failed_cycle

NOW = datetime(2026, 1, 2, tzinfo=UTC)
STEP = StepState(name="charge", cycle=2, max_attempts=3)


def attempt(number: int) -> Attempt:
    """One failed try."""
    return Attempt(attempt=number, at=NOW, category=Category.NETWORK, error_type="OSError", error=f"try {number}")


def activity_error(
    *causes: BaseException, state: RetryState | None = RetryState.NON_RETRYABLE_FAILURE
) -> ActivityError:
    """Return what a workflow catches, with a chain of causes."""
    error = ActivityError(
        "Activity task failed",
        scheduled_event_id=5,
        started_event_id=6,
        identity="worker",
        activity_type="run_step",
        activity_id="1",
        retry_state=state,
    )
    link: BaseException = error
    for cause in causes:
        link.__cause__ = cause
        link = cause
    return error


def timed_out(kind: TimeoutType | None, details: Sequence[Any] = ()) -> TemporalTimeoutError:
    """Return one of Temporal's timeouts."""
    return TemporalTimeoutError("activity timeout", type=kind, last_heartbeat_details=details)


def told(kind: str, *details: Any) -> ApplicationError:
    """Return what the step activity raises."""
    return ApplicationError("the card is stolen", *details, type=kind)


def test_what_the_step_told_is_taken_over() -> None:
    """Category, type, text, stack, attempts and build come from the activity's own error."""
    details = AttemptError(attempts=[attempt(1), attempt(2)], error_type="Refused", stack="in charge", build_id="b7")
    cycle = failed_cycle(activity_error(told("provider_4xx", details.model_dump(mode="json"))), STEP, NOW)
    assert (cycle.step, cycle.cycle, cycle.category) == ("charge", 2, Category.PROVIDER_4XX)
    assert (cycle.error_type, cycle.message, cycle.stack) == ("Refused", "the card is stolen", "in charge")
    assert (cycle.attempts, cycle.build_id) == ([attempt(1), attempt(2)], "b7")


@pytest.mark.parametrize(
    ("cause", "category", "kind", "text"),
    [
        (timed_out(TimeoutType.START_TO_CLOSE), Category.TIMEOUT, "TimeoutError", "took longer than its deadline"),
        (timed_out(TimeoutType.HEARTBEAT), Category.TIMEOUT, "TimeoutError", "stopped reporting"),
        (timed_out(TimeoutType.SCHEDULE_TO_CLOSE), Category.TIMEOUT, "TimeoutError", "for all attempts"),
        (timed_out(TimeoutType.SCHEDULE_TO_START), Category.TIMEOUT, "TimeoutError", "not picked up by any worker"),
        (timed_out(None), Category.TIMEOUT, "TimeoutError", "the step timed out"),
        (told("NotFoundError"), Category.UNKNOWN_MODULE, "NotFoundError", "stolen"),
        (told("PydanticSerializationError"), Category.SERIALIZATION, "PydanticSerializationError", "stolen"),
        (told("PayloadsTooLarge"), Category.TOO_LARGE, "PayloadsTooLarge", "stolen"),
        (told("PayloadSizeError"), Category.TOO_LARGE, "PayloadSizeError", "stolen"),
        (ApplicationError("Failed decoding arguments"), Category.VALIDATION, "ApplicationError", "Failed decoding"),
        (ApplicationError("something"), Category.UNKNOWN, "ApplicationError", "something"),
        (told("provider_4xx", {"foreign": "details"}), Category.UNKNOWN, "provider_4xx", "stolen"),
        (told("HTTPError", {CATEGORY_DETAIL: "provider_4xx"}), Category.PROVIDER_4XX, "HTTPError", "stolen"),
        (told("HTTPError", {CATEGORY_DETAIL: ["provider_4xx"]}), Category.UNKNOWN, "HTTPError", "stolen"),
        (told("KeyError"), Category.UNKNOWN, "KeyError", "stolen"),
        (ServerError("the server failed"), Category.UNKNOWN, "ServerError", "the server failed"),
        (CancelledError("canceled"), Category.UNKNOWN, "CancelledError", "canceled"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_nobody_told_is_classified(cause: BaseException, category: Category, kind: str, text: str) -> None:
    """Each kind of failure that an activity cannot see has its category, and the silent try is listed."""
    cycle = failed_cycle(activity_error(cause), STEP, NOW)
    assert (cycle.category, cycle.error_type) == (category, kind)
    assert text in cycle.message
    (entry,) = cycle.attempts
    assert (entry.attempt, entry.at, entry.category, entry.delay) == (1, NOW, category, None)


def test_a_failure_without_a_cause_is_unknown() -> None:
    """Even an error that says nothing gives a cycle."""
    cycle = failed_cycle(activity_error(), STEP, NOW)
    assert (cycle.category, cycle.error_type) == (Category.UNKNOWN, "ActivityError")


def test_the_attempts_before_a_silent_one_are_read_from_its_heartbeat() -> None:
    """Tries that reported are kept, and the one that died is added after them."""
    details = [[attempt(1).model_dump(mode="json"), attempt(2).model_dump(mode="json")]]
    cycle = failed_cycle(activity_error(timed_out(TimeoutType.HEARTBEAT, details)), STEP, NOW)
    assert [entry.attempt for entry in cycle.attempts] == [1, 2, 3]
    assert [entry.category for entry in cycle.attempts] == [Category.NETWORK, Category.NETWORK, Category.TIMEOUT]


@pytest.mark.parametrize("details", [["nonsense"], [{"a": 1}], [[{"attempt": "x"}]], [None]])
def test_foreign_heartbeat_details_do_no_harm(details: list[Any]) -> None:
    """What is not a list of attempts is not taken for one."""
    cycle = failed_cycle(activity_error(timed_out(TimeoutType.HEARTBEAT, details)), STEP, NOW)
    assert [entry.attempt for entry in cycle.attempts] == [1]


def test_silent_tries_are_counted_when_all_are_used_up() -> None:
    """Where Temporal says that the most tries were made, the last has that number."""
    error = activity_error(told("NotFoundError"), state=RetryState.MAXIMUM_ATTEMPTS_REACHED)
    assert failed_cycle(error, STEP, NOW).attempts[-1].attempt == 3


def test_a_nested_cause_is_found() -> None:
    """A timeout that carries the last error of the step itself tells that error and its attempts."""
    details = AttemptError(attempts=[attempt(1)], error_type="OSError")
    chain = timed_out(TimeoutType.SCHEDULE_TO_CLOSE), told("network", details.model_dump(mode="json"))
    cycle = failed_cycle(activity_error(*chain), STEP, NOW)
    assert (cycle.category, cycle.message, cycle.attempts) == (Category.NETWORK, "the card is stolen", [attempt(1)])


def test_a_long_text_is_bounded() -> None:
    """However much an error says, what is kept of it has a limit."""
    cycle = failed_cycle(activity_error(ApplicationError("x" * 100_000)), STEP, NOW)
    assert len(cycle.message) == ERROR_TEXT_LIMIT
    assert len(cycle.attempts[0].error) <= 1024
