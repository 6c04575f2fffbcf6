"""Replays on the real stack: what runs again, what is reused, what the record and the audit log say."""

import pytest

from redrive import RunStatus, StepStatus
from redrive.dead_letters import MAX_REPLAYS, LetterStatus, Mode, Verb
from tests.integration.dead_letters.conftest import BUILD
from tests.integration.dead_letters.lab import Case, wording


async def statuses(case: Case) -> list[StepStatus]:
    return [step.status for step in (await case.view()).steps]


async def test_exhausted_step_becomes_a_record_and_its_run_waits(case: Case) -> None:
    """The record says what failed, how often and with which build; the run is parked and says so."""
    await case.park("second", key="order:7")
    record = await case.record()
    assert record
    assert (record["tenant"], record["run_id"], record["step"]) == (case.tenant, case.run_id, "second")
    assert (record["pipeline"], record["category"], record["error_type"]) == ("three", "validation", "Terminal")
    assert (record["message"], record["cycle"], record["build_id"]) == ("the service is broken", 1, BUILD)
    assert record["idempotency_key"] == "order:7"
    assert [entry["cycle"] for entry in record["failure_history"]] == [1]
    assert record["payload"]["n"] == 1
    view = await case.until(RunStatus.DLQ_PENDING)
    assert [step.status for step in view.steps] == [StepStatus.SUCCESS, StepStatus.DLQ, StepStatus.PENDING]
    assert view.error
    assert "the service is broken" in view.error


async def test_replay_takes_the_same_run_to_success(case: Case) -> None:
    """A replay runs the dead step and the later ones, in the same run, with the same key, in the next cycle."""
    await case.park("second")
    case.mend()
    answer = await case.command(Verb.REPLAY)
    assert answer.accepted
    assert answer.status is LetterStatus.REPLAYING
    result = await case.redrive.result(case.run_id)
    assert result.status is RunStatus.SUCCESS
    assert case.service.called == ["first", "second", "second", "third"]
    calls = [call for call in case.service.calls if call.step == "second"]
    assert len({call.key for call in calls}) == len({call.run_id for call in calls}) == 1
    assert [step.cycle for step in result.steps] == [1, 2, 1]
    record = await case.until_letter("second", LetterStatus.REPLAYED)
    assert (record["replay_count"], record["replayed_by"], record["replay_mode"]) == (1, "ada", "FROM_STEP")
    assert [row["action"] for row in await case.audit("second")] == [
        "dead_lettered",
        "replay_requested",
        "replay_outcome",
    ]


async def test_step_only_replay_stops_before_the_later_steps(case: Case) -> None:
    """STEP_ONLY leaves the run PARTIAL until it is told to continue."""
    await case.park("second")
    case.mend()
    assert (await case.command(Verb.REPLAY, mode=Mode.STEP_ONLY)).accepted
    view = await case.until(RunStatus.PARTIAL)
    assert [step.status for step in view.steps] == [StepStatus.SUCCESS, StepStatus.SUCCESS, StepStatus.PENDING]
    assert case.service.called == ["first", "second", "second"]
    await case.until_letter("second", LetterStatus.REPLAYED)
    answer = await case.redrive.dead_letters.go_on(case.run_id, requested_by="ada", reason="checked")
    assert answer.accepted
    assert (await case.redrive.result(case.run_id)).status is RunStatus.SUCCESS
    assert case.service.called == ["first", "second", "second", "third"]


async def test_continue_signal_lets_a_partial_run_go_on(case: Case) -> None:
    """The signal does what the update does."""
    await case.park("second")
    case.mend()
    await case.command(Verb.REPLAY, mode=Mode.STEP_ONLY)
    await case.until(RunStatus.PARTIAL)
    await case.run.signal(Verb.CONTINUE, wording())
    assert (await case.redrive.result(case.run_id)).status is RunStatus.SUCCESS


async def test_step_only_replay_of_the_last_step_ends_the_run(case: Case) -> None:
    """Nothing is left to wait for."""
    await case.park("third")
    case.mend()
    assert (await case.command(Verb.REPLAY, "third", mode=Mode.STEP_ONLY)).accepted
    assert (await case.redrive.result(case.run_id)).status is RunStatus.SUCCESS


async def test_continue_of_a_run_that_is_not_partial_is_refused(case: Case) -> None:
    """The answer says where the run is."""
    await case.park("second")
    answer = await case.redrive.dead_letters.go_on(case.run_id, requested_by="ada", reason="too early")
    assert not answer.accepted
    assert "DLQ_PENDING" in answer.message
    row = await case.audited(answer.request_id, action="refused")
    assert row["actor"] == "ada"
    await case.works_still()


async def test_replay_from_an_earlier_step_runs_it_again(case: Case) -> None:
    """Steps before from_step are reused; those from it on run again."""
    await case.park("third")
    case.mend()
    assert (await case.command(Verb.REPLAY, "third", from_step="second")).accepted
    assert (await case.redrive.result(case.run_id)).status is RunStatus.SUCCESS
    assert case.service.called == ["first", "second", "third", "second", "third"]
    await case.until_letter("third", LetterStatus.REPLAYED)


async def test_letter_waits_while_its_run_goes_back_to_an_earlier_step(case: Case) -> None:
    """It is `replaying` until its own step ran again."""
    await case.park("third")
    case.service.flaky.add("first")
    policy = {"base": "PT0.3S", "cap": "PT1S", "max_attempts": 50}
    assert (await case.command(Verb.REPLAY, "third", from_step="first", policy=policy)).accepted
    await case.until_letter("third", LetterStatus.REPLAYING)
    view = await case.until(RunStatus.RUNNING)
    assert [step.status for step in view.steps][1:] == [StepStatus.PENDING, StepStatus.PENDING]
    case.mend()
    case.service.flaky.clear()
    assert (await case.redrive.result(case.run_id)).status is RunStatus.SUCCESS
    await case.until_letter("third", LetterStatus.REPLAYED)


async def test_earlier_step_that_fails_now_blocks_the_later_letter(case: Case) -> None:
    """The earlier step gets a letter of its own, the later one points to it, and both close when it is replayed."""
    await case.park("third")
    case.mend()
    case.service.broken.add("first")
    assert (await case.command(Verb.REPLAY, "third", from_step="first")).accepted
    await case.until_letter("first", LetterStatus.PENDING, cycle=2)
    record = await case.until_letter("third", LetterStatus.PENDING)
    assert record["blocked_by"] == "first"
    for verb in (Verb.REPLAY, Verb.DISCARD):
        refused = await case.command(verb, "third")
        assert not refused.accepted
        assert "'first'" in refused.message
        assert await case.audited(refused.request_id, action="refused")
    case.mend()
    assert (await case.command(Verb.REPLAY, "first")).accepted
    assert (await case.redrive.result(case.run_id)).status is RunStatus.SUCCESS
    await case.until_letter("first", LetterStatus.REPLAYED)
    record = await case.until_letter("third", LetterStatus.REPLAYED)
    assert record["blocked_by"] is None
    endings = [row["after"]["ending"] for row in await case.audit("third") if row["action"] == "replay_outcome"]
    assert endings == ["blocked", "succeeded"]


async def test_discard_of_the_earlier_step_closes_the_later_letter(case: Case) -> None:
    """When the run ends, no letter of it stays open."""
    await case.park("third")
    case.mend()
    case.service.broken.add("first")
    await case.command(Verb.REPLAY, "third", from_step="first")
    await case.until_letter("third", LetterStatus.PENDING)
    await case.until_letter("first", LetterStatus.PENDING, cycle=2)
    assert (await case.command(Verb.DISCARD, "first")).accepted
    await case.until(RunStatus.FAILED)
    await case.until_letter("first", LetterStatus.DISCARDED)
    await case.until_letter("third", LetterStatus.DISCARDED)


async def test_replay_that_is_exhausted_again_appends_a_cycle(case: Case) -> None:
    """The record is pending again, its history has one entry a cycle, and who replayed it stands there."""
    await case.park("second")
    case.service.error = "broken otherwise"
    assert (await case.command(Verb.REPLAY, mode=Mode.STEP_ONLY)).accepted
    record = await case.until_letter("second", LetterStatus.PENDING, cycle=2)
    first, again = record["failure_history"]
    assert (first["cycle"], first["message"], first["build_id"]) == (1, "the service is broken", BUILD)
    assert (again["cycle"], again["message"], again["category"]) == (2, "broken otherwise", "validation")
    assert (again["replayed_by"], again["mode"]) == ("ada", "STEP_ONLY")
    assert len(again["attempts"]) == 1
    assert (record["replay_count"], record["message"]) == (1, "broken otherwise")
    assert len({call.key for call in case.service.calls if call.step == "second"}) == 1
    await case.works_still()


async def test_policy_of_a_replay_holds_for_its_cycle_only(case: Case) -> None:
    """The next cycle follows the step's own policy again."""
    await case.park("second")
    case.mend()
    case.service.flaky.add("second")
    await case.command(Verb.REPLAY, policy={"max_attempts": 4})
    await case.until_letter("second", LetterStatus.PENDING, cycle=2)
    await case.command(Verb.REPLAY)
    record = await case.until_letter("second", LetterStatus.PENDING, cycle=3)
    assert [len(entry["attempts"]) for entry in record["failure_history"]] == [1, 4, 2]
    assert [call.max_attempts for call in case.service.calls if call.step == "second"] == [2, 4, 4, 4, 4, 2, 2]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"attempts": 5}, "attempts"),
        ({"base": "soon"}, "base"),
        ({"cap": "PT0.001S"}, "cap"),
    ],
)
async def test_policy_that_does_not_fit_is_refused(case: Case, policy: dict[str, object], expected: str) -> None:
    """The answer names the field; nothing runs."""
    await case.park("second")
    answer = await case.command(Verb.REPLAY, policy=policy)
    assert not answer.accepted
    assert expected in answer.message
    assert (await case.audited(answer.request_id, action="refused"))["after"]["answer"]["message"] == answer.message
    assert case.service.called == ["first", "second"]


async def test_replays_are_bounded(case: Case) -> None:
    """After the limit a letter can only be resolved or discarded."""
    await case.park("second")
    for replay in range(MAX_REPLAYS):
        assert (await case.command(Verb.REPLAY)).accepted
        await case.until_letter("second", LetterStatus.PENDING, cycle=replay + 2)
    answer = await case.command(Verb.REPLAY)
    assert not answer.accepted
    assert str(MAX_REPLAYS) in answer.message
    assert (await case.command(Verb.DISCARD)).accepted
    await case.until(RunStatus.FAILED)


async def test_plan_tells_what_a_replay_would_do(case: Case) -> None:
    """Which steps are reused, which run again, which are left for later."""
    await case.park("second")
    letters = case.redrive.dead_letters
    plan = await letters.plan(case.letter("second"), mode=Mode.STEP_ONLY)
    assert (plan.reused, plan.run_again, plan.left_for_later) == (["first"], ["second"], ["third"])
    plan = await letters.plan(case.letter("second"), from_step="first")
    assert (plan.reused, plan.run_again, plan.left_for_later) == ([], ["first", "second", "third"], [])
    assert case.service.called == ["first", "second"]
