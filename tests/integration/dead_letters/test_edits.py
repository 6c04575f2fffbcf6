"""Orders that carry something: edits of the input, an output in the step's place, the end of the run."""

from typing import Any

import pytest

from redrive import RunFailed, RunStatus, StepStatus
from redrive.contracts import RESULT_LIMIT
from redrive.dead_letters import LetterStatus, Verb
from tests.integration.dead_letters.lab import Case, Given, Place


async def last_input(case: Case, step: str) -> Given:
    return [call.given for call in case.service.calls if call.step == step][-1]


async def test_edit_changes_the_input_of_the_replayed_step(case: Case) -> None:
    """The patch is merged into the step's input, nested parts included; other steps keep theirs."""
    await case.park("second", note="old", place={"city": "Paris", "street": "rue A"})
    case.mend()
    answer = await case.command(Verb.REPLAY, input_patch={"n": 40, "place": {"city": "Rome"}})
    assert answer.accepted, answer
    await case.redrive.result(case.run_id)
    given = await last_input(case, "second")
    assert (given.n, given.note, given.place) == (40, "old", Place(city="Rome", street="rue A"))
    assert (await last_input(case, "third")).n == 1
    row = await case.audited(answer.request_id, action="replay_requested")
    assert row["after"]["command"]["edited"] is True


async def test_null_in_an_edit_removes_the_field(case: Case) -> None:
    """As RFC 7386 says, in nested objects too; a later edit goes on from there."""
    await case.park("second", note="old", place={"city": "Paris", "street": "rue A"})
    assert (await case.command(Verb.REPLAY, input_patch={"note": None, "place": {"street": None}})).accepted
    await case.until_letter("second", LetterStatus.PENDING, cycle=2)
    given = await last_input(case, "second")
    assert (given.note, given.place) == (None, Place(city="Paris"))
    case.mend()
    assert (await case.command(Verb.REPLAY, input_patch={"n": 9})).accepted
    await case.redrive.result(case.run_id)
    given = await last_input(case, "second")
    assert (given.note, given.place, given.n) == (None, Place(city="Paris"), 9)


async def test_second_edit_is_checked_on_top_of_the_first(case: Case) -> None:
    """What is validated is what would run."""
    await case.park("second")
    assert (await case.command(Verb.REPLAY, input_patch={"place": {"city": "Rome"}})).accepted
    await case.until_letter("second", LetterStatus.PENDING, cycle=2)
    case.mend()
    answer = await case.command(Verb.REPLAY, input_patch={"place": {"street": "via B"}})
    assert answer.accepted, answer
    await case.redrive.result(case.run_id)
    assert (await last_input(case, "second")).place == Place(city="Rome", street="via B")


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ({"n": "many"}, "n: "),
        ({"unknown": 1}, "input_patch.unknown"),
        ({"place": {"street": "rue B"}}, "place.city"),
        ({"case": None}, "case: Field required"),
        ({"third": {"n": 1}}, "input_patch.third"),
        ({"place": ["Rome"]}, "place"),
        ({"note": "x" * (1024 * 1024)}, "limit"),
    ],
)
async def test_edit_that_does_not_fit_is_refused(case: Case, patch: dict[str, object], expected: str) -> None:
    """The answer names the field, the audit log has it, nothing runs and nothing is left behind of the edit."""
    await case.park("second")
    answer = await case.command(Verb.REPLAY, input_patch=patch)
    assert not answer.accepted
    assert expected in answer.message
    row = await case.audited(answer.request_id, action="refused")
    assert row["after"]["answer"]["message"] == answer.message
    assert case.service.called == ["first", "second"]
    await case.works_still()
    assert (await last_input(case, "second")).n == 1


async def test_edits_together_have_a_limit(case: Case) -> None:
    """Each edit is kept: many that remove what was not there leave a small input, and a run too large for Temporal."""
    await case.park("second")
    absent = {f"no-such-field-{number:05d}": None for number in range(38_000)}
    patch = {"place": {"city": "Rome"} | absent}
    assert (await case.command(Verb.REPLAY, input_patch=patch)).accepted
    await case.until_letter("second", LetterStatus.PENDING, cycle=2)
    answer = await case.command(Verb.REPLAY, input_patch=patch)
    assert not answer.accepted
    assert "payload, outputs and edits together" in answer.message
    await case.works_still()


async def test_resolve_goes_on_with_the_given_output(case: Case) -> None:
    """Later steps read it as if the step had returned it; the step is not called again."""
    await case.park("second")
    answer = await case.command(Verb.RESOLVE, output={"step": "by hand", "n": 77})
    assert answer.accepted, answer
    assert answer.status is LetterStatus.RESOLVED
    result = await case.redrive.result(case.run_id)
    assert result.status is RunStatus.SUCCESS
    assert case.service.called == ["first", "second", "third"]
    third: Any = await last_input(case, "third")
    assert (third.second.step, third.second.n) == ("by hand", 77)
    record = await case.until_letter("second", LetterStatus.RESOLVED)
    assert (record["resolution"], record["resolved_by"], record["resolution_reason"]) == (
        "resolve",
        "ada",
        "it is mended",
    )
    row = await case.audited(answer.request_id, action="resolved")
    assert (row["actor"], row["reason"]) == ("ada", "it is mended")


async def test_resolve_of_the_last_step_is_the_runs_output(case: Case) -> None:
    """The run returns it, with the model's defaults, as the module would have returned it."""
    await case.park("third")
    assert (await case.command(Verb.RESOLVE, "third", output={"step": "x", "n": 5})).accepted
    assert (await case.redrive.result(case.run_id)).output == {"step": "x", "n": 5, "extra": "default"}


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ({"n": 1}, "step: Field required"),
        ({"step": "x", "n": "many"}, "n: "),
        ({"step": "x" * (RESULT_LIMIT + 1), "n": 1}, "limit"),
    ],
)
async def test_output_that_does_not_fit_is_refused(case: Case, output: dict[str, object], expected: str) -> None:
    """The answer names the field and the letter stays open."""
    await case.park("second")
    answer = await case.command(Verb.RESOLVE, output=output)
    assert not answer.accepted
    assert expected in answer.message
    assert await case.audited(answer.request_id, action="refused")
    assert (await case.record() or {})["status"] == "pending"
    await case.works_still()


async def test_discard_ends_the_run_with_who_and_why(case: Case) -> None:
    """The run is FAILED, later steps are skipped, and the error says who gave up and why."""
    await case.park("second")
    answer = await case.command(Verb.DISCARD, reason="the customer left")
    assert answer.accepted
    assert answer.status is LetterStatus.DISCARDED
    with pytest.raises(RunFailed, match="discarded by ada: the customer left"):
        await case.redrive.result(case.run_id)
    view = await case.until(RunStatus.FAILED)
    assert [step.status for step in view.steps] == [StepStatus.SUCCESS, StepStatus.FAILED, StepStatus.SKIPPED]
    record = await case.until_letter("second", LetterStatus.DISCARDED)
    assert (record["resolved_by"], record["resolution_reason"]) == ("ada", "the customer left")
    assert (await case.audited(answer.request_id, action="discarded"))["reason"] == "the customer left"


async def test_cancel_of_a_parked_run_closes_its_letter(case: Case) -> None:
    """Nothing is left to command."""
    await case.park("second")
    await case.redrive.cancel(case.run_id, reason="not needed")
    await case.until(RunStatus.CANCELED)
    record = await case.until_letter("second", LetterStatus.DISCARDED)
    assert record["resolution"] == "run canceled"
    answer = await case.redrive.dead_letters.replay(case.letter("second"), requested_by="ada", reason="too late")
    assert not answer.accepted
    assert "discarded" in answer.message
