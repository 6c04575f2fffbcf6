"""Orders that cannot be carried out: each gets an answer and a line in the audit log, and harms nothing."""

import asyncio
import uuid
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import WithStartWorkflowOperation
from temporalio.common import RawValue, WorkflowIDConflictPolicy
from temporalio.service import RPCError

from redrive import InvalidInput, RunStatus
from redrive.contracts import Workflow
from redrive.dead_letters import (
    Answer,
    Ending,
    LetterInput,
    LetterSignal,
    LetterStatus,
    Mode,
    Outcome,
    OutcomeReport,
    Verb,
)
from tests.conftest import eventually
from tests.integration.dead_letters.lab import Case, stuck, wording

BINARY = RawValue(Payload(metadata={"encoding": b"binary/plain"}, data=bytes(range(256))))
GARBAGE = RawValue(Payload(metadata={"encoding": b"json/plain"}, data=b'{"request_id": "x", '))
FOREIGN = RawValue(Payload(metadata={"encoding": b"json/protobuf", "messageType": b"no.such.Type"}, data=b"{}"))
EMPTY = RawValue(Payload())
NESTED = RawValue(
    Payload(metadata={"encoding": b"json/plain"}, data=b'{"input_patch":' + b"[" * 5000 + b"]" * 5000 + b"}")
)

MALFORMED: dict[str, list[object]] = {
    "no argument": [],
    "two arguments": [wording(), wording()],
    "two arguments, one garbage": [wording(), GARBAGE],
    "null": [None],
    "a text": ["replay it, please"],
    "a list": [[wording()]],
    "binary": [BINARY],
    "broken JSON": [GARBAGE],
    "a foreign encoding": [FOREIGN],
    "an empty payload": [EMPTY],
    "no fields": [{}],
    "no reason": [{"request_id": "a", "requested_by": "ada"}],
    "an empty reason": [wording(reason="")],
    "a reason of 1 MB": [wording(reason="x" * 1_000_000)],
    "a number as reason": [wording(reason=7)],
    "a number as request id": [wording(request_id=7)],
    "an unknown mode": [wording(mode="EVERYTHING")],
    "an unknown field": [wording(force=True)],
    "20,000 unknown fields": [wording(**{f"field-{number}": number for number in range(20_000)})],
    "an edit of 1.5 MB": [wording(input_patch={"n": [0] * 750_000})],
    "a list as edit": [wording(input_patch=[1, 2])],
    "a nul character": [wording(reason="a\0b")],
    "a wrong from_step": [wording(from_step="Not A Name")],
    "deep nesting": [NESTED],
}


@pytest.mark.parametrize("to", ["queue", "run"])
async def test_malformed_signals_are_refused_and_audited(case: Case, to: str) -> None:
    """Whatever a signal carries, the workflow lives on, and the audit log says what was wrong with it."""
    await case.park("second")
    handle = case.run if to == "run" else case.queue
    for arguments in MALFORMED.values():
        await handle.signal(Verb.REPLAY, args=arguments)
    rows = await case.refusals(len(MALFORMED))
    assert len(rows) == len(MALFORMED)
    for name, row in zip(MALFORMED, rows, strict=True):
        assert row["after"]["problem"], name
        assert len(row["after"]["problem"]) <= 1024, name
        assert (row["actor"], row["after"]["verb"]) == ("unknown", "replay"), name
    assert not await stuck(case.run)
    assert not await stuck(case.queue)
    assert case.service.called == ["first", "second"]
    await case.works_still()


async def test_malformed_updates_are_answered_and_audited(case: Case) -> None:
    """An update says at once what is wrong with it."""
    await case.park("second")
    for name, arguments in MALFORMED.items():
        answer: Answer = await case.queue.execute_update(Verb.REPLAY, args=arguments, result_type=Answer)
        assert not answer.accepted, name
        assert answer.message, name
    await case.refusals(len(MALFORMED))
    await case.works_still()


@pytest.mark.parametrize("to", ["queue", "run"])
async def test_unknown_signal_is_refused_and_audited(case: Case, to: str) -> None:
    """It is named in the audit log."""
    await case.park("second")
    handle = case.run if to == "run" else case.queue
    await handle.signal("replya", wording())
    rows = await case.refusals(1)
    assert "replya" in rows[0]["after"]["problem"]
    await case.works_still()


@pytest.mark.parametrize("name", ["exhausted", "outcome", "command"])
async def test_forged_word_between_workflows_harms_nothing(case: Case, name: str) -> None:
    """Signals by which run and queue talk to each other are read with the same care."""
    await case.park("second")
    forgeries: list[list[object]] = [[], [BINARY], [{}], [wording(), wording()]]
    for arguments in forgeries:
        await case.queue.signal(name, args=arguments)
        await case.run.signal(name, args=arguments)
    await case.works_still()
    assert case.service.called == ["first", "second", "second", "third"]


async def test_malformed_continue_harms_nothing(case: Case) -> None:
    """A PARTIAL run goes on waiting for one that it can read."""
    await case.park("second")
    case.mend()
    await case.command(Verb.REPLAY, mode=Mode.STEP_ONLY)
    await case.until(RunStatus.PARTIAL)
    for arguments in MALFORMED.values():
        await case.run.signal(Verb.CONTINUE, args=arguments)
    unreadable: list[list[object]] = [[], [{"reason": 1}], [GARBAGE, GARBAGE]]
    for arguments in unreadable:
        answer: Answer = await case.run.execute_update(Verb.CONTINUE, args=arguments, result_type=Answer)
        assert not answer.accepted
    rows = await case.refusals(len(MALFORMED) + 3)
    assert {row["after"]["verb"] for row in rows} == {"continue"}
    assert not await stuck(case.run)
    await case.run.signal(Verb.CONTINUE, wording(request_id="go"))
    assert (await case.redrive.result(case.run_id)).status is RunStatus.SUCCESS
    row = await case.audited("go", action="continued")
    assert (row["actor"], row["step"]) == ("ada", "second")


@pytest.mark.parametrize("verb", [Verb.REPLAY, Verb.RESOLVE, Verb.DISCARD])
@pytest.mark.parametrize("to", ["queue", "run"])
async def test_signal_by_hand_is_carried_out(case: Case, verb: Verb, to: str) -> None:
    """Sent to the run, or to the queue with the run's id and step."""
    await case.park("second")
    case.mend()
    fields: dict[str, Any] = {"output": {"step": "x", "n": 1}} if verb is Verb.RESOLVE else {}
    message = wording(**fields) if to == "run" else case.addressed(**fields)
    await (case.run if to == "run" else case.queue).signal(verb, message)
    ends = {Verb.REPLAY: RunStatus.SUCCESS, Verb.RESOLVE: RunStatus.SUCCESS, Verb.DISCARD: RunStatus.FAILED}
    actions = {Verb.REPLAY: "replay_requested", Verb.RESOLVE: "resolved", Verb.DISCARD: "discarded"}
    await case.until(ends[verb])
    assert (await case.audited(str(message["request_id"]), action=actions[verb]))["actor"] == "ada"


async def test_replay_during_a_retry_wait_is_refused(case: Case) -> None:
    """There is no dead letter yet; the answer says so, the audit log too, and the step keeps its retry."""
    case.service.flaky.add("patient")
    await case.start(pipeline="slow")

    async def waits() -> bool:
        return (await case.view()).steps[0].next_retry_at is not None

    await eventually(waits)
    letters = case.redrive.dead_letters
    answer = await letters.replay(case.letter("patient"), requested_by="ada", reason="impatient")
    assert not answer.accepted
    assert "no dead letter" in answer.message
    assert await case.audited(answer.request_id, action="refused")
    await case.run.signal(Verb.REPLAY, wording(request_id="to-the-run"))
    row = await case.audited("to-the-run", action="refused")
    assert row["actor"] == "ada"
    assert await waits()
    assert await case.record("patient") is None
    await case.run.terminate()


async def test_replay_of_a_replayed_letter_is_refused(case: Case) -> None:
    """A closed letter answers, too, whoever asks."""
    await case.park("second")
    await case.works_still()
    await case.until_letter("second", LetterStatus.REPLAYED)
    letters = case.redrive.dead_letters
    for verb in (letters.replay, letters.discard, letters.restart):
        answer = await verb(case.letter("second"), requested_by="bob", reason="again")
        assert not answer.accepted
        assert "replayed" in answer.message
        assert (await case.audited(answer.request_id, action="refused"))["actor"] == "bob"
    assert case.service.called == ["first", "second", "second", "third"]


async def test_command_for_a_letter_that_never_was_is_refused(case: Case) -> None:
    """The workflow that answers is gone afterwards."""
    await case.park("second")
    answer = await case.redrive.dead_letters.discard(case.letter("first"), requested_by="ada", reason="typo")
    assert not answer.accepted
    assert "no dead letter" in answer.message
    malformed: Answer = await _with_start(case, "first", {"reason": "typo"})
    assert not malformed.accepted
    await case.temporal.get_workflow_handle(case.letter("first").workflow_id).result()
    await case.works_still()


async def _with_start(case: Case, step: str, message: dict[str, Any]) -> Answer:
    operation: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
        Workflow.DEAD_LETTER,
        LetterInput(letter=case.letter(step)),
        id=case.letter(step).workflow_id,
        task_queue=case.task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
    )
    answer: Answer = await case.temporal.execute_update_with_start_workflow(
        Verb.REPLAY, message, start_workflow_operation=operation, result_type=Answer
    )
    return answer


@pytest.mark.parametrize("fields", [{}, {"run_id": "x"}, {"step": "second"}, {"run_id": 7, "step": "second"}])
async def test_command_to_the_queue_without_an_address_is_refused(case: Case, fields: dict[str, Any]) -> None:
    """The answer says what is missing."""
    await case.park("second")
    answer: Answer = await case.queue.execute_update(Verb.DISCARD, wording(**fields), result_type=Answer)
    assert not answer.accepted
    assert "run_id and step" in answer.message
    [line] = await case.refusals(1)
    assert line["dead_letter"] == case.queue.id
    await case.works_still()


async def test_report_of_another_tenant_is_refused(case: Case) -> None:
    """A queue writes what belongs to its tenant, and nothing else."""
    await case.park("second")
    foreign = case.letter("second").model_copy(update={"tenant": f"{case.tenant}-b"})
    outcome = OutcomeReport(letter=foreign, outcome=Outcome(ending=Ending.SUCCEEDED))
    await case.queue.signal(LetterSignal.OUTCOME, outcome)
    [line] = await case.refusals(1)
    assert "another tenant" in line["after"]["problem"]
    await case.works_still()


async def test_of_two_commands_at_once_one_wins(case: Case) -> None:
    """The other is told why; both are in the audit log; the step runs once more, or not at all."""
    await case.park("second")
    case.mend()
    resolve, replay, discard = await asyncio.gather(
        case.command(Verb.RESOLVE, output={"step": "x", "n": 1}),
        case.command(Verb.REPLAY),
        case.command(Verb.DISCARD),
    )
    answers = [resolve, replay, discard]
    assert [answer.accepted for answer in answers].count(True) == 1
    for answer in answers:
        if not answer.accepted:
            assert any(word in answer.message for word in ("under way", "replayed", "resolved", "discarded")), answer
            assert await case.audited(answer.request_id, action="refused")
    await case.until(RunStatus.FAILED if discard.accepted else RunStatus.SUCCESS)
    assert case.service.called.count("second") == (2 if replay.accepted else 1)


async def test_twenty_replays_at_once_run_the_step_once(case: Case) -> None:
    """However often the button is pressed."""
    await case.park("second")
    case.mend()
    letters = case.redrive.dead_letters
    answers = await asyncio.gather(
        *(
            letters.replay(case.letter("second"), requested_by="ada", reason="click", request_id=f"click-{number % 4}")
            for number in range(20)
        )
    )
    assert len({answer.request_id for answer in answers if answer.accepted}) == 1
    await case.redrive.result(case.run_id)
    assert case.service.called == ["first", "second", "second", "third"]


async def test_discard_twice_is_refused_the_second_time(case: Case) -> None:
    """The first one holds."""
    await case.park("second")
    letters = case.redrive.dead_letters
    first = await letters.discard(case.letter("second"), requested_by="ada", reason="gone")
    second = await letters.discard(case.letter("second"), requested_by="bob", reason="gone, too")
    assert first.accepted
    assert not second.accepted
    assert "discarded" in second.message
    assert (await case.audited(second.request_id, action="refused"))["actor"] == "bob"
    assert (await case.record() or {})["resolved_by"] == "ada"


async def test_same_request_id_gets_the_first_answer(case: Case) -> None:
    """While the command is carried out, after the letter closed, as signal or as update, whatever else it says."""
    await case.park("second")
    letters, letter = case.redrive.dead_letters, case.letter("second")
    refused = await letters.replay(letter, requested_by="ada", reason="x", input_patch={"nope": 1}, request_id="no")
    case.mend()
    case.service.is_open.clear()
    accepted = await letters.replay(letter, requested_by="ada", reason="x", request_id="yes")
    await case.queue.signal(Verb.REPLAY, case.addressed(request_id="yes"))
    case.service.is_open.set()
    await case.redrive.result(case.run_id)
    await case.until_letter("second", LetterStatus.REPLAYED)
    assert await letters.replay(letter, requested_by="bob", reason="y", request_id="no") == refused
    assert await letters.discard(letter, requested_by="bob", reason="y", request_id="yes") == accepted
    assert case.service.called == ["first", "second", "second", "third"]
    requests = [row["request_id"] for row in await case.audit() if row["action"] in {"replay_requested", "refused"}]
    assert sorted(requests) == ["no", "yes"]


async def test_reason_of_five_megabytes_is_refused_before_it_is_sent(case: Case) -> None:
    """By the client with a sentence; sent by hand, by Temporal itself. Both leave the letter as it was."""
    await case.park("second")
    with pytest.raises(InvalidInput, match="reason"):
        await case.redrive.dead_letters.replay(case.letter("second"), requested_by="ada", reason="x" * 5_000_000)
    with pytest.raises(RPCError):
        await case.queue.signal(Verb.REPLAY, case.addressed(reason="x" * 5_000_000))
    await case.works_still()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"from_step": "third"}, "from_step 'third'"),
        ({"from_step": "nowhere"}, "from_step 'nowhere'"),
        ({"from_step": "first", "mode": "STEP_ONLY"}, "STEP_ONLY"),
    ],
)
async def test_from_step_that_cannot_be_is_refused(case: Case, fields: dict[str, Any], expected: str) -> None:
    """The answer names the step."""
    await case.park("second")
    answer = await case.command(Verb.REPLAY, **fields)
    assert not answer.accepted
    assert expected in answer.message
    assert await case.audited(answer.request_id, action="refused")


async def test_command_needs_no_queue(case: Case) -> None:
    """One that was terminated by mistake is not missed: the run takes its commands itself."""
    await case.park("second")
    await case.queue.terminate(reason="by mistake")
    case.mend()
    await case.run.signal(Verb.REPLAY, wording(request_id=uuid.uuid4().hex))
    assert (await case.redrive.result(case.run_id)).status is RunStatus.SUCCESS
    await case.until_letter("second", LetterStatus.REPLAYED)


async def test_outcome_is_recorded_without_a_queue(case: Case) -> None:
    """The record does not stay `replaying` for ever."""
    await case.park("second")
    case.mend()
    case.service.flaky.add("second")
    policy = {"base": "PT0.2S", "cap": "PT1S", "max_attempts": 50}
    assert (await case.command(Verb.REPLAY, policy=policy)).accepted
    await case.until(RunStatus.RUNNING)
    await case.queue.terminate(reason="by mistake")
    case.service.flaky.clear()
    assert (await case.redrive.result(case.run_id)).status is RunStatus.SUCCESS
    await case.until_letter("second", LetterStatus.REPLAYED)


async def test_command_that_reaches_the_run_again_later_is_ignored(case: Case) -> None:
    """It is good for the cycle that it was accepted for: the next one waits for an order of its own."""
    await case.park("second")
    await case.command(Verb.REPLAY, request_id="once")
    await case.until_letter("second", LetterStatus.PENDING, cycle=2)
    await case.run.signal(Verb.REPLAY, wording(request_id="once"))
    await case.queue.signal(Verb.REPLAY, case.addressed(request_id="once"))
    case.mend()
    assert (await case.command(Verb.RESOLVE, output={"step": "x", "n": 1})).accepted
    assert (await case.redrive.result(case.run_id)).status is RunStatus.SUCCESS
    assert case.service.called == ["first", "second", "second", "third"]
