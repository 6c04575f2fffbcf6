"""Commands that are sent by hand: whoever sends them, and wherever to, they are recorded before they are obeyed."""

from typing import Any

import pytest

from redrive import RunStatus
from redrive.dead_letters import LetterStatus, Verb
from redrive.starter.stack.state import StackInfo
from tests.conftest import eventually
from tests.integration.dead_letters.lab import Case, stuck, wording
from tests.integration.dead_letters.processes import stopped

OUTPUT = {"step": "second", "n": 7}


async def _details(case: Case) -> str:
    return str(await case.run.query("__temporal_workflow_metadata"))


@pytest.mark.parametrize(
    ("verb", "fields", "action"),
    [
        (Verb.RESOLVE, {"output": OUTPUT}, "resolved"),
        (Verb.DISCARD, {}, "discarded"),
        (Verb.REPLAY, {}, "replay_requested"),
    ],
)
async def test_command_sent_to_the_run_by_hand_leaves_its_line(
    case: Case, verb: Verb, fields: dict[str, Any], action: str
) -> None:
    """Who it names, why and what happened stand in the audit log, as of any other command."""
    await case.park("second")
    case.mend()
    await case.run.signal(verb, wording(request_id="by-hand", requested_by="mallory", **fields))
    await case.until(RunStatus.FAILED if verb is Verb.DISCARD else RunStatus.SUCCESS)
    [line] = [row for row in await case.audit() if row["request_id"] == "by-hand" and row["action"] == action]
    assert (line["actor"], line["step"]) == ("mallory", "second")


async def test_request_id_of_another_command_does_not_lend_its_answer(case: Case) -> None:
    """It gets the first answer; what it asks for itself is not carried out."""
    await case.park("second", "third")
    case.mend("second")
    assert (await case.command(Verb.REPLAY, request_id="real")).accepted
    await case.until_letter("third", LetterStatus.PENDING)
    await case.run.signal(Verb.RESOLVE, wording(request_id="real", output=OUTPUT))
    await case.works_still("third")
    assert "resolved" not in {row["action"] for row in await case.audit()}


async def test_unreadable_command_to_the_run_is_written_down(case: Case) -> None:
    """The run's page shows it as well."""
    await case.park("second")
    await case.run.signal(Verb.REPLAY, {"step": "second", "nonsense": True})
    [line] = await case.refusals(1)
    assert line["after"]["verb"] == "replay"
    assert "does not fit" in line["after"]["problem"]
    assert "does not fit" in await _details(case)
    await case.works_still()


@pytest.mark.parametrize("to", ["queue", "run"])
async def test_floods_of_unreadable_signals_leave_few_lines(case: Case, to: str) -> None:
    """Fifty lines, then one whenever their number has doubled; each says how many it speaks of."""
    await case.park("second")
    target = case.run if to == "run" else case.queue
    for number in range(130):
        await target.signal(Verb.REPLAY, {"nonsense": number})

    async def all_counted() -> bool:
        rows = await case.rows("SELECT count FROM redrive.refused_messages WHERE tenant = $1", case.tenant)
        return [row["count"] for row in rows] == [130]

    await eventually(all_counted)
    lines = await case.refusals(52)
    assert [line["after"]["count"] for line in lines] == [1] * 50 + [14, 64]
    assert not await stuck(target)
    await case.works_still()


async def test_command_waits_for_the_database(case: Case, stack: StackInfo) -> None:
    """It is in the run's history: it is recorded and carried out when the database is back, not before."""
    await case.park("second")
    case.mend()
    with stopped(stack.children["postgres"]):
        await case.run.signal(Verb.REPLAY, wording(request_id="meanwhile"))

        async def is_asked() -> bool:
            description = await case.run.describe()
            return bool(description.raw_description.pending_activities)

        await eventually(is_asked)
        assert (await case.view()).status is RunStatus.DLQ_PENDING
        assert case.service.called.count("second") == 1
    await case.until(RunStatus.SUCCESS)
    assert await case.audited("meanwhile", action="replay_requested")
