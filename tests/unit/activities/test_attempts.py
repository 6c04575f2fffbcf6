"""The attempts of a step as they travel from one try to the next."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.activities.attempts import earlier_attempts, to_details, with_attempt
from redrive.categories import Category
from redrive.contracts import ATTEMPT_TEXT_LIMIT, ATTEMPTS_KEPT, Attempt

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def attempt(number: int, error: str = "down") -> Attempt:
    """One failed try."""
    return Attempt(
        attempt=number,
        at=NOW,
        category=Category.NETWORK,
        error_type="OSError",
        error=error,
        delay=timedelta(seconds=1.5),
    )


def test_the_first_try_has_none_before_it() -> None:
    """Without prior tries and details there is nothing to tell."""
    assert earlier_attempts([], [], 1, NOW) == []


def test_reported_attempts_come_back_as_they_were() -> None:
    """What one try wrote into the heartbeat, the next reads."""
    attempts = [attempt(1), attempt(2)]
    assert earlier_attempts([], [to_details(attempts)], 3, NOW) == attempts


def test_tries_that_died_without_a_word_are_listed_as_interrupted() -> None:
    """Each number between the last report and this try gets an entry of its own."""
    found = earlier_attempts([], [to_details([attempt(1)])], 4, NOW)
    assert [(entry.attempt, entry.error_type) for entry in found] == [
        (1, "OSError"),
        (2, "Interrupted"),
        (3, "Interrupted"),
    ]
    assert {entry.category for entry in found[1:]} == {Category.TIMEOUT}


def test_prior_attempts_stand_before_reported_ones() -> None:
    """Tries made before this command are part of the cycle."""
    found = earlier_attempts([attempt(1)], [to_details([attempt(1), attempt(2)])], 3, NOW)
    assert [entry.attempt for entry in found] == [1, 2]


@pytest.mark.parametrize("details", [["text"], [{"a": 1}], [[1]], [None], [[{"attempt": 1}]]])
def test_foreign_details_are_not_attempts(details: list[object]) -> None:
    """Details that something else wrote count as silence."""
    found = earlier_attempts([], details, 2, NOW)
    assert [entry.error_type for entry in found] == ["Interrupted"]


@settings(deadline=None)
@given(st.integers(1, 400))
def test_the_list_is_bounded_and_keeps_the_first_and_the_latest(count: int) -> None:
    """However many tries there were, the list has the first, the latest ones, and a limit."""
    attempts: list[Attempt] = []
    for number in range(1, count + 1):
        attempts = with_attempt(attempts, attempt(number))
    assert len(attempts) == min(count, ATTEMPTS_KEPT)
    assert (attempts[0].attempt, attempts[-1].attempt) == (1, count)
    numbers = [entry.attempt for entry in attempts]
    assert numbers[1:] == list(range(count - len(numbers) + 2, count + 1))


def test_very_many_silent_tries_are_bounded() -> None:
    """A gap of a thousand tries does not make a thousand entries."""
    assert len(earlier_attempts([], [to_details([attempt(1)])], 1000, NOW)) <= ATTEMPTS_KEPT + 1


def test_a_long_error_is_cut() -> None:
    """What travels with every heartbeat stays small."""
    (entry,) = with_attempt([], attempt(1, "x" * 100_000))
    assert len(entry.error) == ATTEMPT_TEXT_LIMIT
