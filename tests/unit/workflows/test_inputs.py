"""Reading what starts a run."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from redrive import STEP, StepStatus
from redrive.contracts import RunInput, RunState, StepSnapshot, StepState
from workflows.inputs import NOTHING, read_run_input

SNAPSHOTS = [StepSnapshot(name="a", policy=STEP), StepSnapshot(name="b", policy=STEP)]


def raw(data: bytes) -> RawValue:
    """Return an argument with these bytes."""
    return RawValue(Payload(data=data))


def continued(*names: str, done: tuple[str, ...] = (), outputs: tuple[str, ...] = ()) -> RawValue:
    """Return the input of a run that goes on."""
    steps = [StepState(name=name, status=StepStatus.SUCCESS if name in done else StepStatus.PENDING) for name in names]
    state = RunState(steps=steps, outputs={name: {} for name in outputs})
    return raw(RunInput(pipeline="p", steps=SNAPSHOTS, state=state).model_dump_json().encode())


def test_a_state_of_the_same_steps_is_taken() -> None:
    """A run that continued itself is read as it was written."""
    order = read_run_input(continued("a", "b", done=("a",), outputs=("a",)))
    assert order.state is not None
    assert order.state.outputs == {"a": {}}


@pytest.mark.parametrize(
    "given_state",
    [
        continued("a"),
        continued("b", "a"),
        continued("a", "b", "c"),
        continued("a", "b", done=("a",)),
        continued("a", "b", outputs=("a",)),
    ],
    ids=["a step missing", "another order", "a step more", "no output", "an output too early"],
)
def test_a_state_of_other_steps_is_refused(given_state: RawValue) -> None:
    """A state that does not belong to the steps would break the run later."""
    with pytest.raises(ApplicationError, match="state: does not belong to the steps"):
        read_run_input(given_state)


def test_no_input_at_all_is_refused() -> None:
    """A start without an argument is told what is missing."""
    with pytest.raises(ApplicationError, match="the run's input is not JSON"):
        read_run_input(NOTHING)


@settings(deadline=None)
@given(st.binary() | st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5).map(json.dumps))
def test_any_bytes_are_a_run_or_a_final_refusal(data: Any) -> None:
    """Nothing makes the reader raise what would hang the workflow's task."""
    with pytest.raises(ApplicationError) as refused:
        read_run_input(raw(data if isinstance(data, bytes) else data.encode()))
    assert refused.value.non_retryable
    assert refused.value.type == "validation"
