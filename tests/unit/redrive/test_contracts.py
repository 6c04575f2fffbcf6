"""The messages between processes."""

from datetime import UTC
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from redrive import STEP, RunStatus
from redrive.categories import TERMINAL_CATEGORIES, TRANSIENT_CATEGORIES, Category
from redrive.contracts import STEP_LIMIT, Attempt, FailedCycle, RunInput, RunState, StepSnapshot, StepState

ATTEMPTS = st.builds(Attempt, at=st.datetimes(timezones=st.just(UTC)))
CYCLES = st.builds(FailedCycle, attempts=st.lists(ATTEMPTS, max_size=2))


@given(CYCLES)
def test_a_cycle_survives_the_wire(cycle: FailedCycle) -> None:
    """What a run tells of a failure arrives as it was sent."""
    assert FailedCycle.model_validate_json(cycle.model_dump_json()) == cycle


def test_a_runs_input_survives_the_wire() -> None:
    """Steps, policies and state arrive as they were sent."""
    command = RunInput(
        pipeline="p",
        payload={"a": [1, None]},
        steps=[StepSnapshot(name="s", policy=STEP, reads=["a"])],
        state=RunState(steps=[StepState(name="s")], outputs={"s": {"b": 1}}),
    )
    assert RunInput.model_validate_json(command.model_dump_json()) == command


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({}, "pipeline"),
        ({"pipeline": "A"}, "pipeline"),
        ({"pipeline": "p\n"}, "pipeline"),
        ({"pipeline": "p", "tenant": ""}, "tenant"),
        ({"pipeline": "p", "tenant": "x" * 65}, "tenant"),
        ({"pipeline": "p", "payload": []}, "payload"),
        ({"pipeline": "p", "more": 1}, "more"),
        ({"pipeline": "p", "steps": []}, "steps"),
        ({"pipeline": "p", "steps": [StepSnapshot(name="s", policy=STEP)] * (STEP_LIMIT + 1)}, "steps"),
        ({"pipeline": "p", "key": ""}, "key"),
        ({"pipeline": "p", "key": "x" * 256}, "key"),
        ({"pipeline": "p", "user_id": ""}, "user_id"),
    ],
)
def test_a_wrong_input_of_a_run_is_refused_at_its_place(fields: dict[str, Any], place: str) -> None:
    """Unknown fields are refused, too: a misspelt one must not be ignored."""
    with pytest.raises(ValidationError) as refused:
        RunInput(**fields)
    assert [error["loc"][0] for error in refused.value.errors()] == [place]


def test_two_hundred_steps_are_allowed() -> None:
    """The limit itself is within it."""
    command = RunInput(pipeline="p", steps=[StepSnapshot(name="s", policy=STEP)] * STEP_LIMIT)
    assert len(command.steps or []) == STEP_LIMIT


def test_every_category_is_transient_terminal_or_unknown() -> None:
    """No category is forgotten, and none is both."""
    assert TRANSIENT_CATEGORIES | TERMINAL_CATEGORIES | {Category.UNKNOWN} == set(Category)
    assert not TRANSIENT_CATEGORIES & TERMINAL_CATEGORIES


def test_three_statuses_are_final() -> None:
    """A run that succeeded, failed or was canceled does not change any more."""
    assert {status for status in RunStatus if status.closed} == {
        RunStatus.SUCCESS,
        RunStatus.FAILED,
        RunStatus.CANCELED,
    }
