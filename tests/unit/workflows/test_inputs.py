"""Reading what starts a run, and what is signalled to workflows."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from redrive import STEP, StepStatus
from redrive.bulk import Approval, BulkBegin, BulkCommand, BulkControlInput, BulkRequest, BulkStart, ItemsRequest
from redrive.contracts import (
    INPUT_ELEMENT_LIMIT,
    ResolveRequest,
    RunInput,
    RunState,
    StepSnapshot,
    StepState,
    SweepInput,
)
from redrive.dead_letters import (
    COMMAND_LIMIT,
    PROBLEM_LIMIT,
    AlertInput,
    Ending,
    Exhausted,
    LetterId,
    LetterInput,
    Outcome,
    OutcomeReport,
    QueueInput,
    Replay,
    Resolve,
    Verb,
)
from redrive.workflows.inputs import (
    NOTHING,
    read_addressed_command,
    read_command,
    read_input,
    read_message,
    read_run_input,
)

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
    command = read_run_input(continued("a", "b", done=("a",), outputs=("a",)))
    assert command.state is not None
    assert command.state.outputs == {"a": {}}


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


COMMAND = {"request_id": "r-1", "requested_by": "ada", "reason": "mended"}


def signalled(value: Any) -> list[RawValue]:
    """Return the arguments of a signal with one document."""
    return [raw(json.dumps(value).encode())]


def test_the_signals_name_is_the_commands_verb() -> None:
    """Whoever signals `replay` need not say it again, and cannot say anything else."""
    assert isinstance(read_command(signalled(COMMAND), Verb.REPLAY), Replay)
    assert isinstance(read_command(signalled({**COMMAND, "verb": "discard"}), "replay"), Replay)
    assert isinstance(read_command(signalled({**COMMAND, "verb": "resolve", "output": {}})), Resolve)


@pytest.mark.parametrize(
    ("arguments", "verb", "sentence"),
    [
        ([], "replay", "the command is not JSON: 0 arguments; one is needed"),
        (signalled(COMMAND) * 2, "replay", "the command is not JSON: 2 arguments; one is needed"),
        ([raw(b"{")], "replay", "the command is not JSON: EOF"),
        ([raw(b" " * (COMMAND_LIMIT + 1))], "replay", f"{COMMAND_LIMIT + 1} bytes; the limit is {COMMAND_LIMIT}"),
        (signalled("mended"), "replay", "the command does not fit: "),
        (signalled({**COMMAND, "mode": "ALL"}), "replay", "mode"),
        (signalled({**COMMAND, "colour": "red"}), "replay", "colour"),
        (signalled({**COMMAND, "reason": ""}), "discard", "reason"),
        (signalled({**COMMAND, "input_patch": {"a": "\0"}}), "replay", "U+0000"),
        (signalled(COMMAND), "explode", "'explode' is not a command; there are replay, resolve, discard"),
        (signalled({**COMMAND, "verb": "explode"}), None, "explode"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_command_that_cannot_be_read_is_answered_with_a_sentence(
    arguments: list[RawValue], verb: str | None, sentence: str
) -> None:
    """The sentence names the place, and is short enough to be kept."""
    answer = read_command(arguments, verb)
    assert isinstance(answer, str)
    assert sentence in answer
    assert len(answer) <= PROBLEM_LIMIT


def test_a_command_to_a_queue_names_its_dead_letter() -> None:
    """By run and step; the rest is as to the run itself."""
    read = read_addressed_command(signalled({**COMMAND, "run_id": "run-1", "step": "pay"}), "replay", "acme")
    assert not isinstance(read, str)
    letter, command = read
    assert letter == LetterId(tenant="acme", run_id="run-1", step="pay")
    assert isinstance(command, Replay)


@pytest.mark.parametrize(
    ("value", "verb", "sentence"),
    [
        (COMMAND, "replay", "run_id and step"),
        ({**COMMAND, "run_id": "run-1"}, "replay", "run_id and step"),
        ({**COMMAND, "run_id": "", "step": "pay"}, "replay", "run_id and step"),
        ({**COMMAND, "run_id": ["run-1"], "step": "pay"}, "replay", "run_id and step"),
        ({**COMMAND, "run_id": "run-1", "step": "pay", "colour": "red"}, "replay", "colour"),
        ({**COMMAND, "run_id": "run-1", "step": "pay"}, "continue", "a command for the run"),
        ({**COMMAND, "run_id": "run-1", "step": "pay"}, "explode", "'explode' is not a command"),
        ("mended", "replay", "no JSON object"),
    ],
)
def test_a_command_to_a_queue_that_cannot_be_read_is_named(value: object, verb: str, sentence: str) -> None:
    """Which field, and what is wrong with it."""
    answer = read_addressed_command(signalled(value), verb, "acme")
    assert isinstance(answer, str)
    assert sentence in answer


def test_a_message_of_another_workflow_is_read_or_named() -> None:
    """The owner's word is taken as strictly as an operator's."""
    assert read_message(Outcome, signalled({"ending": "succeeded"})) == Outcome(ending=Ending.SUCCEEDED)
    assert "ending" in str(read_message(Outcome, signalled({"ending": "well"})))
    assert "one is needed" in str(read_message(Outcome, []))


@settings(deadline=None)
@given(st.lists(st.binary(max_size=50), max_size=3), st.none() | st.sampled_from(list(Verb)) | st.text(max_size=80))
def test_any_signal_is_a_command_or_a_sentence(data: list[bytes], verb: str | None) -> None:
    """Nothing makes the readers raise: that would fail the workflow's task for ever."""
    arguments = [raw(part) for part in data]
    assert isinstance(read_command(arguments, verb), str)
    assert isinstance(read_addressed_command(arguments, verb or "", "acme"), str)
    assert isinstance(read_message(Outcome, arguments), str)


MODELS: list[type[BaseModel]] = [
    QueueInput,
    LetterInput,
    AlertInput,
    BulkStart,
    BulkCommand,
    Approval,
    BulkRequest,
    ItemsRequest,
    ResolveRequest,
    SweepInput,
    Exhausted,
    OutcomeReport,
    BulkControlInput,
    BulkBegin,
]
NAMES = sorted({name for model in MODELS for name in model.model_fields} | {"since", "until", "step", "run_id"})
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "P999999999D", "replay", "acme"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(), inner, max_size=6),
    max_leaves=12,
)


@settings(deadline=None, max_examples=400)
@given(st.sampled_from(MODELS), VALUES)
def test_any_document_is_a_message_or_a_refusal(model: type[BaseModel], value: Any) -> None:
    """No model of what reaches a workflow raises anything but a refusal: that would hang the workflow's task."""
    document = raw(json.dumps(value).encode())
    with contextlib.suppress(ApplicationError):
        read_input(model, document)
    read_message(model, [document])


def test_an_input_that_the_database_cannot_hold_is_refused() -> None:
    """U+0000 in any text: the question would be asked again and again."""
    with pytest.raises(ApplicationError, match=r"the input\.bulk_id: the character U\+0000 cannot be stored"):
        read_input(BulkRequest, raw(b'{"tenant": "acme", "bulk_id": "a\\u0000b"}'))


def test_a_sweep_has_a_shift_that_temporal_takes() -> None:
    """A shift that is none, or that has no end, would be refused by the server for ever."""
    for shift in ("P999999999D", 0, -1):
        with pytest.raises(ApplicationError, match="shift"):
            read_input(SweepInput, raw(json.dumps({"tenant": "acme", "shift": shift}).encode()))


def test_a_run_input_of_too_many_elements_is_refused_before_it_is_parsed() -> None:
    """Unless the run continues itself: what it has become was checked step by step."""
    data = b'{"pipeline": "p", "payload": {"a": [' + b"0," * INPUT_ELEMENT_LIMIT + b"0]}}"
    with pytest.raises(ApplicationError, match=f"the run's input has more than {INPUT_ELEMENT_LIMIT} elements"):
        read_run_input(raw(data))
    with pytest.raises(ApplicationError, match="payload: more than 50000 elements"):
        read_run_input(raw(data), is_continued=True)
