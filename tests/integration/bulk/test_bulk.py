"""A bulk operation from its start to its end: what belongs to it, what becomes of each item, what is written down."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from redrive import RunStatus
from redrive.activities import bulk as bulk_activities
from redrive.bulk import BulkStatus, ItemStatus
from redrive.dead_letter_client import DeadLetters
from redrive.dead_letters import LetterSelection, Verb
from redrive.errors import BulkNotFound
from tests.conftest import eventually
from tests.integration.bulk.lab import WHO, Case

APPLIED, SKIPPED, FAILED = ItemStatus.APPLIED, ItemStatus.SKIPPED, ItemStatus.FAILED


async def test_every_dead_letter_is_replayed_once_and_that_is_audited(case: Case) -> None:
    """All runs go on; each letter's own command has the bulk operation's id in it, and who asked and why."""
    await case.park(*range(8))
    case.mend()
    bulk = await case.start()
    view = await case.until(bulk, BulkStatus.DONE)
    assert (view.progress.total, view.progress.applied, view.requested_by) == (8, 8, "ada")
    assert case.service.calls == {("charge", number): 1 for number in range(8)}
    entries = await case.audit()
    commands = [entry for entry in entries if entry["action"] == "replay_requested"]
    assert len(commands) == 8
    assert {(entry["actor"], entry["reason"]) for entry in commands} == {tuple(WHO.values())}
    assert all(entry["request_id"].startswith(f"{bulk.bulk_id}:") for entry in commands)
    own = [(entry["action"], entry["actor"]) for entry in entries if entry["request_id"] == bulk.bulk_id]
    assert own == [("bulk_started", "ada"), ("bulk_finished", "redrive")]


async def test_runs_are_signalled_and_not_asked(case: Case) -> None:
    """The audit log has the answers: a run gets one signal, and no update, which would cost it events of its own."""
    await case.park(1, 2)
    case.mend()
    await case.until(await case.start(), BulkStatus.DONE)
    for letter in case.runs.values():
        history = await case.temporal.get_workflow_handle(letter.run_id).fetch_history()
        kinds = Counter(event.event_type for event in history.events)
        assert kinds[EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED] == 1
        assert kinds[EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED] == 0


async def test_a_command_without_an_answer_in_the_records_is_asked_for(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ends when the signal arrives does not take it, and Temporal tells nobody."""

    async def lost(*_: object) -> bool:
        return True

    await case.park(1, 2)
    case.mend()
    monkeypatch.setattr(DeadLetters, "tell", lost)
    monkeypatch.setattr(bulk_activities, "ASK_AFTER", timedelta(milliseconds=200))
    bulk = await case.start()
    await case.until(bulk, BulkStatus.DONE)
    assert await case.became(bulk) == {1: APPLIED, 2: APPLIED}
    assert case.service.calls == {("charge", 1): 1, ("charge", 2): 1}


async def test_what_fails_later_does_not_belong_to_it(case: Case) -> None:
    """The membership is settled at the start: a letter that comes while it runs stays as it is."""
    await case.park(1, 2)
    case.mend()
    case.service.open.clear()
    bulk = await case.start()
    case.service.refused.add(3)
    case.service.open.set()
    await case.park(3)
    await case.until(bulk, BulkStatus.DONE)
    assert await case.became(bulk) == {1: APPLIED, 2: APPLIED}
    rows = await case.rows("SELECT status FROM redrive.dead_letters WHERE id = $1", case.runs[3].workflow_id)
    assert rows == [{"status": "pending"}]


async def test_exhausted_again_is_failed_and_says_why(case: Case) -> None:
    """The outcome counts, not that the command was taken."""
    await case.park(1, 2)
    case.service.refused.discard(1)
    bulk = await case.start()
    await case.until(bulk, BulkStatus.DONE)
    assert await case.became(bulk) == {1: APPLIED, 2: FAILED}
    assert {item.status: item.why for item in await case.items(bulk)} == {
        APPLIED: "replayed",
        FAILED: "exhausted again: validation: the provider is down",
    }


async def test_canary_that_fails_stops_the_rest(case: Case) -> None:
    """Nothing but the canary was tried; the rest is skipped with the reason, and the audit log tells who stopped it."""
    await case.park(*range(6))
    bulk = await case.start(case.command(canary=2, stop_percent=20))
    view = await case.until(bulk, BulkStatus.STOPPED)
    assert (view.progress.failed, view.progress.skipped) == (2, 4)
    assert view.stopped_because == "2 of 2 failed, more than 20 %"
    skipped = [item.why for item in await case.items(bulk) if item.status is SKIPPED]
    assert skipped == ["the bulk operation was stopped: 2 of 2 failed, more than 20 %"] * 4
    entries = await case.audit()
    assert sum(entry["action"] == "replay_requested" for entry in entries) == 2
    assert [entry["actor"] for entry in entries if entry["action"] == "bulk_stopped"] == ["redrive"]


async def test_canary_that_succeeds_lets_the_rest_go(case: Case) -> None:
    """The rest is not sent before the canary's outcome is known, and then it is."""
    await case.park(*range(4))
    case.mend()
    case.service.open.clear()
    bulk = await case.start(case.command(canary=1))

    async def canary_is_out() -> bool:
        return (await case.view(bulk)).progress.accepted == 1

    await eventually(canary_is_out)
    assert (await case.view(bulk)).progress.pending == 3
    case.service.open.set()
    await case.until(bulk, BulkStatus.DONE)
    assert set((await case.became(bulk)).values()) == {APPLIED}


async def test_an_edit_reaches_those_that_it_fits_and_the_others_are_skipped(case: Case) -> None:
    """Each item's input is checked with the edit before its run hears of it; who it does not fit is listed with why."""
    await case.park(1, 2)
    await case.park(7, pipeline="wires", step="transfer")
    case.mend()
    bulk = await case.start(case.command(input_patch={"iban": "DE02"}), allow_unsafe=True)
    await case.until(bulk, BulkStatus.DONE)
    assert await case.became(bulk) == {1: SKIPPED, 2: SKIPPED, 7: APPLIED}
    skipped = await case.redrive.bulk.items(bulk.bulk_id, tenant=case.tenant, status=SKIPPED, limit=1)
    assert skipped.after == 0
    assert skipped.items[0].why == "input_patch.iban: 'charge' reads no such field; it reads case, number"
    assert "DE02" not in str(await case.rows("SELECT * FROM redrive.bulk_operations WHERE tenant = $1", case.tenant))


@pytest.mark.parametrize("verb", [Verb.RESOLVE, Verb.DISCARD])
async def test_resolve_and_discard_work_in_bulk(case: Case, verb: Verb) -> None:
    """Resolved runs go on with the given output; discarded ones end FAILED."""
    await case.park(1, 2)
    options: dict[str, Any] = {"output": {"number": 0}} if verb is Verb.RESOLVE else {}
    bulk = await case.start(case.command(verb, **options))
    await case.until(bulk, BulkStatus.DONE)
    assert set((await case.became(bulk)).values()) == {APPLIED}
    wanted = RunStatus.SUCCESS if verb is Verb.RESOLVE else RunStatus.FAILED

    async def ended() -> bool:
        views = [await case.redrive.status(letter.run_id) for letter in case.runs.values()]
        return all(view.status is wanted for view in views)

    await eventually(ended)


async def test_a_command_that_the_letter_refuses_is_skipped(case: Case) -> None:
    """Somebody was faster with one of them: it is skipped with the letter's own words."""
    await case.park(1, 2)
    case.mend()
    case.service.open.clear()
    bulk = await case.start(case.command(parallelism=1))

    async def first_is_out() -> bool:
        return (await case.view(bulk)).progress.accepted == 1

    await eventually(first_is_out)
    late = next(item for item in await case.items(bulk) if item.status is ItemStatus.PENDING)
    letter = next(letter for letter in case.runs.values() if letter.workflow_id == late.letter_id)
    await case.redrive.dead_letters.discard(letter, requested_by="bob", reason="mine")
    case.service.open.set()
    await case.until(bulk, BulkStatus.DONE)
    last = (await case.items(bulk))[-1]
    assert (last.status, last.why) == (SKIPPED, "the dead letter is discarded: there is nothing left to replay")


async def test_the_same_request_is_the_same_bulk_operation(case: Case) -> None:
    """A double click, or a caller that tries again, starts nothing twice, also when it has ended."""
    await case.park(1)
    case.mend()
    plan = await case.redrive.bulk.plan(case.command())
    first = await case.redrive.bulk.start(plan, **WHO, request_id="click")
    await case.until(first, BulkStatus.DONE)
    again = await case.redrive.bulk.start(plan, **WHO, request_id="click")
    assert again.bulk_id == first.bulk_id
    await case.until(first, BulkStatus.DONE)
    assert case.service.calls == {("charge", 1): 1}


async def test_a_terminated_one_goes_on_when_it_is_started_again(case: Case) -> None:
    """What was done is not done again, and the membership is the one that was settled first."""
    await case.park(1, 2, 3)
    case.mend()
    case.service.open.clear()
    command = case.command(parallelism=1)
    plan = await case.redrive.bulk.plan(command)
    bulk = await case.redrive.bulk.start(plan, **WHO, request_id="once")
    await case.temporal.get_workflow_handle(bulk.bulk_id).terminate("by mistake")
    case.service.open.set()
    await case.redrive.bulk.start(plan, **WHO, request_id="once")
    view = await case.until(bulk, BulkStatus.DONE)
    assert view.progress.applied == 3
    assert case.service.calls == {("charge", number): 1 for number in (1, 2, 3)}


async def test_another_tenant_does_not_see_it(case: Case) -> None:
    """An id is worth nothing without the tenant that it belongs to."""
    await case.park(1)
    case.service.open.clear()
    bulk = await case.start(case.command(selection=LetterSelection(letters=[case.runs[1].workflow_id])))
    with pytest.raises(BulkNotFound):
        await case.redrive.bulk.get(bulk.bulk_id, tenant="another")
    assert (await case.redrive.bulk.items(bulk.bulk_id, tenant="another")).items == []
    with pytest.raises(BulkNotFound):
        await case.redrive.bulk.stop(bulk.bulk_id, tenant="another", **WHO)
    case.service.open.set()
    await case.until(bulk, BulkStatus.DONE)
