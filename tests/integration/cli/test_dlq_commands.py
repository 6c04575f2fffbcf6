"""Orders to dead letters from the command line, against a real worker process."""

import asyncio
import os
import uuid

from tests.conftest import eventually
from tests.integration.cli.command import Said
from tests.integration.cli.operator import WHY, Operator, settled


async def test_dry_run_prints_the_plan_and_changes_nothing(operator: Operator) -> None:
    """Which steps are reused, run again and left; neither record nor audit log know of it."""
    letter = await operator.park()
    before = await operator.record(letter), await operator.audit()
    words = (*WHY, "--dry-run", "--step-only", "--set", "seats=2", "--attempts", "3")
    said = await operator.dlq("replay", letter, *words)
    assert (said.code, said.err) == (0, "")
    assert [line.split() for line in said.out.splitlines()[:5]] == [
        ["reused", "book"],
        ["run", "again", "pay"],
        ["left", "for", "later", "depart"],
        ["edited", "seats"],
        ["policy", "max_attempts", "3"],
    ]
    plan = (await operator.dlq("replay", letter, *WHY, "--dry-run", "--from-step", "book", "--json")).document
    assert (plan["reused"], plan["run_again"], plan["left_for_later"]) == ([], ["book", "pay", "depart"], [])
    wrong = await operator.dlq("replay", letter, *WHY, "--dry-run", "--from-step", "depart")
    assert wrong.code == 1
    assert "'depart'" in wrong.sentence
    assert (await operator.record(letter), await operator.audit()) == before


async def test_without_a_terminal_yes_is_needed(operator: Operator) -> None:
    """Nothing is changed, and the sentence says what to add."""
    letter = await operator.park()
    before = await operator.record(letter), await operator.audit()
    verbs = (("replay",), ("resolve", "--output", "{}"), ("discard",))
    for said in await asyncio.gather(*(operator.dlq(verb, letter, *words, *WHY) for verb, *words in verbs)):
        assert (said.code, said.out) == (1, "")
        assert "nothing was changed: add --yes" in said.err
    assert (await operator.record(letter), await operator.audit()) == before


async def _on_a_terminal(operator: Operator, typed: bytes, *words: str) -> Said:
    """Give a command whose standard input is a terminal."""
    ours, theirs = os.openpty()
    try:
        os.write(ours, typed)
        return await settled(await operator.command.start(*words, stdin=theirs))
    finally:
        os.close(ours)
        os.close(theirs)


async def test_terminal_is_asked(operator: Operator) -> None:
    """The plan and the question stand on stderr; only a yes changes something."""
    letter = await operator.park()
    operator.mend()
    words = ("dlq", "replay", letter.workflow_id, *WHY, "--json")
    for typed in (b"n\n", b"\x04"):
        said = await _on_a_terminal(operator, typed, *words)
        assert (said.code, said.out) == (1, "")
        assert "run again" in said.err
        assert said.err.rstrip().endswith("redrive: nothing was changed [not_confirmed]")
    assert (await operator.audit()) == [("dead_lettered", "redrive")]
    said = await _on_a_terminal(operator, b"y\n", *words)
    assert said.code == 0
    assert said.document["accepted"] is True
    await operator.until(letter, "replayed")


async def test_replay_with_wait_ends_with_the_run(operator: Operator) -> None:
    """The result is shown; the same request id again gets the same answer and runs nothing."""
    letter = await operator.park()
    operator.mend()
    words = (*WHY, "--request-id", uuid.uuid4().hex, "--yes")
    said = await operator.dlq("replay", letter, *words, "--wait")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("the run goes on\n")
    assert said.out.rstrip().endswith('result: {"step":"depart"}')
    again = await operator.dlq("replay", letter, *words, "--wait", "--json")
    assert again.code == 0
    assert (again.document["status"], again.document["answer"]["accepted"]) == ("SUCCESS", True)
    assert operator.calls == ["book", "pay", "pay", "depart"]
    late = await operator.dlq("replay", letter, *WHY, "--yes", "--json")
    assert late.code == 1
    assert late.document["accepted"] is False
    assert late.sentence == "refused: the dead letter is replayed: there is nothing left to replay [command_refused]"


async def test_replay_that_fails_again_gives_exit_code_5(operator: Operator) -> None:
    """The run is parked again, and that is what the wait says."""
    letter = await operator.park()
    said = await operator.dlq("replay", letter, *WHY, "--yes", "--wait", "--json")
    assert (said.code, said.document["status"]) == (5, "DLQ_PENDING")
    assert said.sentence.endswith("[run_parked]")
    assert operator.calls == ["book", "pay", "pay"]


async def test_edit_reaches_the_step(operator: Operator) -> None:
    """An edit that does not fit is refused and audited; one that does heals the run, by option and by file."""
    letter = await operator.park(seats=12)
    operator.mend()
    wrong = await operator.dlq("replay", letter, *WHY, "--yes", "--set", 'seats="many"')
    assert wrong.code == 1
    assert "seats" in wrong.sentence
    assert (await operator.audit())[-1] == ("refused", "ada")
    patch = await operator.dlq("replay", letter, *WHY, "--yes", "--patch", "-", "--wait", stdin='{"seats": 11}')
    assert patch.code == 5
    assert "11 seats are too many" in patch.out
    policy = ("--attempts", "1", "--timeout", "5s", "--base", "100ms")
    said = await operator.dlq("replay", letter, *WHY, "--yes", "--set", "seats=2", *policy, "--wait")
    assert said.code == 0


async def test_step_only_replay_waits_for_continue(operator: Operator) -> None:
    """The run is PARTIAL until `run continue`; a second one is refused."""
    letter = await operator.park()
    operator.mend()
    said = await operator.dlq("replay", letter, *WHY, "--step-only", "--yes", "--wait")
    assert said.code == 0
    assert f"`redrive run continue {letter.run_id} --reason …`" in said.err
    words = ("run", "continue", letter.run_id, *WHY)
    unsure = await operator.command(*words)
    assert (unsure.code, unsure.out) == (1, "")
    assert "--yes" in unsure.sentence
    assert (await operator.command(*words, "--yes")).out == "the run goes on\n"
    assert (await operator.redrive.result(letter.run_id)).output == {"step": "depart"}
    late = await operator.command(*words, "--yes")
    assert (late.code, late.out) == (1, "")
    assert letter.run_id in late.sentence


async def test_resolve_gives_the_run_an_output(operator: Operator) -> None:
    """An output that does not fit is refused; one from a file lets the run go on."""
    letter = await operator.park()
    wrong = await operator.dlq("resolve", letter, *WHY, "--yes", "--output", '{"stop": 1}')
    assert wrong.code == 1
    assert "output: does not fit what 'pay' returns" in wrong.sentence
    (operator.folder / "out.json").write_text('{"step": "cash"}')
    words = ("--yes", "--output-file", str(operator.folder / "out.json"), "--json")
    said = await operator.dlq("resolve", letter, *WHY, *words)
    assert (said.code, said.document["status"]) == (0, "resolved")
    assert (await operator.redrive.result(letter.run_id)).output == {"step": "depart"}
    assert "closed" in (await operator.dlq("show", letter)).out


async def test_discard_ends_the_run(operator: Operator) -> None:
    """By both of its names; a second one is refused."""
    letter = await operator.park()
    said = await operator.dlq("ignore", letter, *WHY, "--yes")
    assert (said.code, said.out) == (0, "the run ends FAILED\n")
    assert (await operator.record(letter) or {})["resolved_by"] == "ada"
    late = await operator.dlq("discard", letter, *WHY, "--yes")
    assert late.code == 1
    assert "discarded" in late.sentence


async def test_restart_takes_the_place_of_a_run_that_is_gone(operator: Operator) -> None:
    """A replay, dry or not, says that the run has ended; a restart goes on from the dead step."""
    letter = await operator.park()
    early = await operator.dlq("restart", letter, *WHY, "--yes")
    assert early.code == 1
    assert "replay" in early.sentence
    await operator.run(letter).terminate()
    operator.mend()
    manners = ("--dry-run", "--yes")
    for said in await asyncio.gather(*(operator.dlq("replay", letter, *WHY, manner) for manner in manners)):
        assert said.code == 1
        assert "restart" in said.sentence
    said = await operator.dlq("restart", letter, *WHY, "--yes", "--json")
    assert said.code == 0
    anew = said.document["message"].removeprefix("started again as ")
    assert (await operator.redrive.result(anew)).output == {"step": "depart"}
    assert operator.calls == ["book", "pay", "pay", "depart"]


async def test_events_replay_is_a_replay(operator: Operator) -> None:
    """The replay script's own options do the same thing, with a reason of their own."""
    letter = await operator.park()
    operator.mend()
    said = await operator.command(
        "events", "replay", "--dlq", "--id", letter.workflow_id, "--yes", "--wait", USER="grace"
    )
    assert said.code == 0
    record = await operator.until(letter, "replayed")
    assert (record["replayed_by"], record["replay_reason"]) == ("grace", "events replay")


async def test_many_callers_with_one_request_replay_once(operator: Operator) -> None:
    """A double click from several terminals is one replay, and all are told the same."""
    letter = await operator.park()
    operator.mend()
    words = (*WHY, "--request-id", uuid.uuid4().hex, "--yes", "--json")
    answers = await asyncio.gather(*(operator.dlq("replay", letter, *words) for _ in range(3)))
    assert [answer.code for answer in answers] == [0, 0, 0]
    assert len({answer.out for answer in answers}) == 1
    await operator.redrive.result(letter.run_id)
    assert operator.calls == ["book", "pay", "pay", "depart"]


async def test_cancel_of_a_parked_run_is_audited_as_a_command(operator: Operator) -> None:
    """The trail of its dead letter has who canceled it and why; a beginning of the run's id is enough."""
    letter = await operator.park()
    beginning = letter.run_id.removeprefix("run-")

    async def listed() -> bool:
        return (await operator.command("run", "status", beginning)).code == 0

    await eventually(listed)
    said = await operator.command("run", "cancel", beginning, "--json", *WHY)
    shown = (await operator.dlq("show", letter, "--json")).document
    assert said.document == {"run_id": letter.run_id, "requested": "cancel"}
    (entry,) = [line for line in shown["audit"] if line["action"] == "cancel_requested"]
    assert (entry["actor"], entry["reason"]) == ("ada", "a test")


async def test_a_dry_run_checks_the_edit(operator: Operator) -> None:
    """What the step would refuse is refused, and an unknown field is named with the one that was meant."""
    letter = await operator.park()
    wrong = await operator.dlq("replay", letter, "--set", "seats=many", "--dry-run", *WHY)
    unknown = await operator.dlq("replay", letter, "--set", "foldre=elsewhere", "--dry-run", *WHY)
    assert (wrong.code, "seats: Input should be a valid integer" in wrong.sentence) == (1, True)
    assert "foldre: the input has no such field; did you mean 'folder'?" in unknown.err
