"""The signal between a dead letter and its run, sent by hand: refused, shown and written down."""

from pathlib import Path
from typing import Any

import pytest

from redrive import RunStatus
from redrive.dead_letters import LetterStatus, RunSignal, Verb
from redrive.starter.stack.state import StackInfo
from tests.conftest import eventually
from tests.integration.dead_letters.lab import Case, stuck, wording
from tests.integration.dead_letters.processes import stopped

OUTPUT = {"step": "second", "n": 7}


def _handed(verb: Verb, cycle: int = 1, proof: str | None = None, **fields: Any) -> dict[str, Any]:
    command = {"step": "second", "cycle": cycle, "command": wording(verb=verb, requested_by="mallory", **fields)}
    return command if proof is None else command | {"proof": proof}


async def _details(case: Case) -> str:
    return str(await case.run.query("__temporal_workflow_metadata"))


@pytest.mark.parametrize("proof", [None, "", "7b0d8a52-6a2e-4a0e-9a64-0d3a7a0f7a11"], ids=["none", "empty", "made up"])
@pytest.mark.parametrize(
    "command",
    [{"verb": Verb.RESOLVE, "output": OUTPUT}, {"verb": Verb.DISCARD}, {"verb": Verb.REPLAY}],
    ids=["resolve", "discard", "replay"],
)
async def test_command_sent_to_the_run_by_hand_is_refused(
    case: Case, command: dict[str, Any], proof: str | None
) -> None:
    """The run stays parked, its page says why, and the audit log has a line with what is known."""
    await case.park("second")
    await case.run.signal(RunSignal.COMMAND, _handed(proof=proof, request_id="by-hand", **command))
    [line] = await case.refusals(1)
    assert (line["actor"], line["step"], line["after"]["verb"]) == ("unknown", "second", "command")
    assert "'by-hand' of 'mallory' did not go through the dead letter's record" in line["after"]["problem"]
    assert (await case.view()).status is RunStatus.DLQ_PENDING
    assert "did not go through the dead letter" in await _details(case)
    record = await case.record()
    assert record
    assert record["status"] == LetterStatus.PENDING
    await case.works_still()


async def test_real_command_cannot_be_lent_to_another(case: Case) -> None:
    """Who knows the id of a command that was accepted still lacks its proof: another output does not pass as it."""
    await case.park("second", "third")
    case.mend("second")
    assert (await case.command(Verb.REPLAY, request_id="real")).accepted
    await case.until_letter("third", LetterStatus.PENDING)
    forged = _handed(Verb.RESOLVE, request_id="real", output=OUTPUT) | {"step": "third"}
    await case.run.signal(RunSignal.COMMAND, forged)
    [line] = await case.refusals(1)
    assert line["step"] == "third"
    assert (await case.view()).status is RunStatus.DLQ_PENDING


async def test_command_for_a_later_cycle_is_refused(case: Case) -> None:
    """A cycle that was opened by a replay asks for a proof of its own."""
    await case.park("second")
    assert (await case.command(Verb.REPLAY)).accepted
    await case.until_letter("second", LetterStatus.PENDING, cycle=2)
    await case.run.signal(RunSignal.COMMAND, _handed(Verb.DISCARD, cycle=2))
    await case.refusals(1)
    await case.works_still()


async def test_unreadable_command_between_workflows_is_written_down(case: Case) -> None:
    """It was dropped without a word."""
    await case.park("second")
    await case.run.signal(RunSignal.COMMAND, {"step": "second", "nonsense": True})
    [line] = await case.refusals(1)
    assert line["after"]["verb"] == "command"
    assert "does not fit" in line["after"]["problem"]
    assert "does not fit" in await _details(case)
    await case.works_still()


async def test_floods_of_unreadable_signals_leave_few_lines(case: Case) -> None:
    """Fifty lines, then one whenever their number has doubled; each says how many it speaks of."""
    await case.park("second")
    for number in range(130):
        target = case.run if number % 2 else case.letter_workflow("second")
        await target.signal(Verb.REPLAY, {"nonsense": number})

    async def all_counted() -> bool:
        rows = await case._rows("SELECT count FROM redrive.refused_messages WHERE tenant = $1", case.tenant)
        return [row["count"] for row in rows] == [130]

    await eventually(all_counted)
    lines = await case.refusals(52)
    assert [line["after"]["count"] for line in lines] == [1] * 50 + [14, 64]
    assert not await stuck(case.letter_workflow("second"))
    await case.works_still()


async def test_command_waits_for_the_database_that_has_its_proof(case: Case, stack: StackInfo) -> None:
    """The database stops between the dead letter's word and the run's question: the command is carried out later."""
    await case.park("second")
    with stopped(stack.children["postgres"]):
        await case.run.signal(RunSignal.COMMAND, _handed(Verb.DISCARD, request_id="meanwhile"))

        async def is_asked() -> bool:
            description = await case.run.describe()
            return bool(description.raw_description.pending_activities)

        await eventually(is_asked)
        assert (await case.view()).status is RunStatus.DLQ_PENDING
    await case.refusals(1)
    await case.works_still()


def test_the_check_is_named_once() -> None:
    """No other file of ours sends the signal between workflows."""
    root = Path(__file__).parents[3]
    packages = ("activities", "redrive", "starter", "workflows")
    senders = [
        file.name
        for package in packages
        for file in (root / package).rglob("*.py")
        if "signal(RunSignal.COMMAND" in file.read_text()
    ]
    assert senders == ["commands.py"]
