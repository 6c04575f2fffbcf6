"""The decisions about dead letters, by table and by property."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from redrive.contracts import RUN_ID_LIMIT, OpenLetter, RunInput, RunState, StepSnapshot, StepState, StepStatus
from redrive.dead_letters import (
    COMMANDS,
    MAX_REPLAYS,
    REASON_LIMIT,
    Discard,
    Ending,
    LetterCommand,
    LetterId,
    LetterState,
    LetterStatus,
    Outcome,
    Replay,
    Resolve,
    Restart,
    refusal,
    restarted,
    status_after,
    status_after_outcome,
)
from redrive.documents import merge_patch, patched
from redrive.policy import STEP

LETTER = LetterId(tenant="t", run_id="run-1", step="second")
WHO = {"request_id": "r", "requested_by": "ada", "reason": "why"}
REPLAY = Replay(**WHO)
RESOLVE = Resolve(**WHO, output={})
DISCARD = Discard(**WHO)
RESTART = Restart(**WHO)
COMMAND_LIST: list[LetterCommand] = [REPLAY, RESOLVE, DISCARD, RESTART]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
documents = st.dictionaries(st.text(max_size=3), json_values, max_size=4)


@pytest.mark.parametrize("command", COMMAND_LIST)
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"status": LetterStatus.REPLAYED}, "replayed"),
        ({"status": LetterStatus.RESOLVED}, "resolved"),
        ({"status": LetterStatus.DISCARDED}, "discarded"),
        ({"status": LetterStatus.REPLAYING}, "under way"),
    ],
)
def test_letter_that_is_not_pending_refuses_every_command(
    command: LetterCommand, change: dict[str, Any], expected: str
) -> None:
    """The refusal says why."""
    reason = refusal(LetterState(letter=LETTER, status=LetterStatus.PENDING).model_copy(update=change), command)
    assert reason
    assert expected in reason


@pytest.mark.parametrize("command", COMMAND_LIST)
def test_pending_letter_takes_every_command(command: LetterCommand) -> None:
    """What only the run knows is checked with the run."""
    assert refusal(LetterState(letter=LETTER, status=LetterStatus.PENDING), command) is None


@pytest.mark.parametrize(("command", "refused"), [(REPLAY, True), (RESOLVE, True), (RESTART, True), (DISCARD, False)])
def test_blocked_letter_names_the_step_it_waits_for(command: LetterCommand, refused: bool) -> None:
    """Only giving up is left to the check with the run, which may be gone."""
    reason = refusal(LetterState(letter=LETTER, status=LetterStatus.PENDING, blocked_by="first"), command)
    assert bool(reason) is refused
    assert not reason or "'first'" in reason


@given(st.integers(min_value=0, max_value=3 * MAX_REPLAYS), st.integers(min_value=1, max_value=20))
def test_replays_are_refused_from_the_limit_on(replays: int, limit: int) -> None:
    """Resolve and discard never are."""
    state = LetterState(letter=LETTER, status=LetterStatus.PENDING, replays=replays)
    assert bool(refusal(state, REPLAY, limit)) is (replays >= limit)
    assert refusal(state, RESOLVE, limit) is None
    assert refusal(state, DISCARD, limit) is None


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (REPLAY, LetterStatus.REPLAYING),
        (RESOLVE, LetterStatus.RESOLVED),
        (RESTART, LetterStatus.RESOLVED),
        (DISCARD, LetterStatus.DISCARDED),
    ],
)
def test_status_after_a_command(command: LetterCommand, status: LetterStatus) -> None:
    """A replay is open until its outcome is known; every other command closes."""
    assert status_after(command) is status
    assert status.closed is not isinstance(command, Replay)


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (Ending.SUCCEEDED, LetterStatus.REPLAYED),
        (Ending.BLOCKED, LetterStatus.PENDING),
        (Ending.CANCELED, LetterStatus.DISCARDED),
    ],
)
def test_status_after_an_outcome(ending: Ending, status: LetterStatus) -> None:
    """What did not end well can be ordered on again."""
    assert status_after_outcome(Outcome(ending=ending)) is status


@pytest.mark.parametrize(
    "fields",
    [
        {"reason": ""},
        {"reason": "x" * (REASON_LIMIT + 1)},
        {"requested_by": ""},
        {"request_id": "x" * 256},
        {"mode": "ALL"},
        {"from_step": "Not a name"},
        {"force": True},
        {"verb": "explode"},
    ],
)
def test_command_that_does_not_fit_is_refused(fields: dict[str, Any]) -> None:
    """Each field has its bounds, and there are no others."""
    with pytest.raises(ValidationError):
        COMMANDS.validate_python({**WHO, "verb": "replay"} | fields)


@given(st.integers(min_value=1, max_value=6), st.data())
def test_restarted_run_keeps_what_earlier_steps_returned(count: int, data: st.DataObject) -> None:
    """Steps before the dead one are done, the others are new, and the generation is the next one."""
    names = [f"step-{number}" for number in range(count)]
    dead = data.draw(st.integers(min_value=0, max_value=count - 1))
    states = [
        StepState(name=name, status=StepStatus.SUCCESS if number < dead else StepStatus.DLQ, cycle=3, attempt=2)
        for number, name in enumerate(names)
    ]
    run = RunInput(
        pipeline="p",
        payload={"n": 1},
        key="k",
        generation=4,
        steps=[StepSnapshot(name=name, policy=STEP) for name in names],
        state=RunState(
            steps=states,
            outputs={name: {"by": name} for name in names},
            patches={name: [{"n": 2}] for name in names},
            letters={names[dead]: OpenLetter(revision=1, command="r")},
            stop_after=names[dead],
        ),
    )
    anew = restarted(run, LetterId(tenant="t", run_id="run-1", step=names[dead]))
    assert anew.generation == 5
    assert (anew.payload, anew.key, anew.steps) == (run.payload, run.key, run.steps)
    assert anew.state
    assert [step.status for step in anew.state.steps] == [StepStatus.SUCCESS] * dead + [StepStatus.PENDING] * (
        count - dead
    )
    assert all(step.cycle == 0 for step in anew.state.steps[dead:])
    assert set(anew.state.outputs) == set(names[:dead])
    assert set(anew.state.patches) == set(names[dead:])
    assert (anew.state.letters, anew.state.stop_after) == ({}, None)
    assert run.state
    assert len(run.state.outputs) == count


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_does_what_the_rfc_shows(target: object, patch: object, result: object) -> None:
    """The examples of RFC 7386, appendix A."""
    assert merge_patch(target, patch) == result


@given(documents, documents)
def test_merge_patch_twice_is_once(target: dict[str, Any], patch: dict[str, Any]) -> None:
    """An edit that is applied again changes nothing, and the target is left as it was."""
    before = repr(target)
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once
    assert repr(target) == before


@given(documents, st.lists(documents, max_size=3))
def test_patches_are_applied_in_order(document: dict[str, Any], patches: list[dict[str, Any]]) -> None:
    """One after another, whatever they remove."""
    expected: Any = document
    for patch in patches:
        expected = merge_patch(expected, patch)
    assert patched(document, patches) == expected


def test_policy_override_is_read_like_a_policy() -> None:
    """As JSON has it: durations are texts."""
    command = REPLAY.model_copy(update={"policy": {"base": "PT5S"}})
    assert command.policy
    assert STEP.model_validate(STEP.model_dump() | command.policy).base == timedelta(seconds=5)


def test_the_longest_run_id_leaves_room_for_its_dead_letters_id() -> None:
    """Temporal's tables in PostgreSQL hold 255 characters of an id: a longer one could never be written."""
    letter = LetterId(tenant="default", run_id="x" * RUN_ID_LIMIT, step="s" * 64)
    assert len(letter.workflow_id) == 255
