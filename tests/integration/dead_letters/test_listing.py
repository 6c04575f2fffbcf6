"""What Temporal lists of a run that is replayed: each change of a list costs the server as much as a step."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from redrive.contracts import RunStatus, RunSummary, SearchAttribute
from redrive.dead_letters import Mode, Verb
from redrive.visibility import runs_query, summary
from redrive.workflows import module_run
from tests.conftest import eventually
from tests.integration.dead_letters.lab import Case

SOON = timedelta(milliseconds=200)
UPSERTED = EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES
FIRED = EventType.EVENT_TYPE_TIMER_FIRED


async def _events(case: Case) -> Sequence[HistoryEvent]:
    return (await case.run.fetch_history()).events


def _listed(events: Sequence[HistoryEvent]) -> list[bytes]:
    """Return the statuses that a run asked Temporal to list, in order."""
    changes = [event.upsert_workflow_search_attributes_event_attributes for event in events]
    fields = [change.search_attributes.indexed_fields for change in changes]
    return [each[SearchAttribute.STATUS].data for each in fields if SearchAttribute.STATUS in each]


async def _in_list(case: Case, status: RunStatus) -> RunSummary:
    """Wait until Temporal lists the run so."""
    query = runs_query(tenant=case.tenant, status=status, pipeline=None)

    async def found() -> RunSummary | None:
        rows = [summary(each.raw_info) async for each in case.temporal.list_workflows(query)]
        return rows[0] if rows else None

    return await eventually(found, within=case.patience)


async def test_a_replay_that_is_soon_over_changes_the_list_with_the_end_of_the_run(case: Case) -> None:
    """In the last workflow task: the list changes once for both."""
    await case.park("second")
    case.mend()
    assert (await case.command(Verb.REPLAY)).accepted
    assert (await case.redrive.result(case.run_id)).status is RunStatus.SUCCESS
    events = await _events(case)
    assert _listed(events) == [b'"DLQ_PENDING"', b'"RUNNING"']
    kinds = [event.event_type for event in events]
    assert (
        UPSERTED
        in kinds[max(n for n, kind in enumerate(kinds) if kind == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED) :]
    )
    assert FIRED not in kinds
    assert (await _in_list(case, RunStatus.SUCCESS)).failed_step == "second"


async def test_a_replay_that_fails_again_soon_changes_no_list(case: Case) -> None:
    """It is listed as parked all the time, and a later replay is listed when it ends."""
    await case.park("second")
    assert (await case.command(Verb.REPLAY)).accepted
    await eventually(lambda: _has_failed_twice(case), within=case.patience)
    assert _listed(await _events(case)) == [b'"DLQ_PENDING"']
    await case.works_still()
    assert _listed(await _events(case)) == [b'"DLQ_PENDING"', b'"RUNNING"']


async def _has_failed_twice(case: Case) -> bool:
    view = await case.view()
    return view.status is RunStatus.DLQ_PENDING and view.steps[1].cycle == 2


async def test_a_replay_that_fails_elsewhere_is_listed_there(case: Case) -> None:
    """An operator who looks for a step finds the run that waits at it now."""
    await case.park("third")
    case.service.broken.add("first")
    assert (await case.command(Verb.REPLAY, "third", from_step="first")).accepted

    async def waits_at_the_first() -> bool:
        return (await _in_list(case, RunStatus.DLQ_PENDING)).failed_step == "first"

    await eventually(waits_at_the_first, within=case.patience)
    await case.works_still("first")


async def test_a_long_replay_is_listed_as_running_meanwhile(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks at Temporal's list while a step is tried again and again does not take the run for parked."""
    monkeypatch.setattr(module_run, "LISTED_AFTER", SOON)
    await case.park("second")
    await _in_list(case, RunStatus.DLQ_PENDING)
    case.mend()
    case.service.is_open.clear()
    assert (await case.command(Verb.REPLAY)).accepted
    assert (await _in_list(case, RunStatus.RUNNING)).run_id == case.run_id
    case.service.is_open.set()
    assert (await case.redrive.result(case.run_id)).status is RunStatus.SUCCESS
    assert _listed(await _events(case)) == [b'"DLQ_PENDING"', b'"RUNNING"']


async def test_a_run_that_waits_to_continue_is_listed_so_at_once(case: Case) -> None:
    """It waits for somebody, who finds it by that."""
    await case.park("second")
    case.mend()
    assert (await case.command(Verb.REPLAY, mode=Mode.STEP_ONLY)).accepted
    assert (await _in_list(case, RunStatus.PARTIAL)).run_id == case.run_id
    answer = await case.redrive.dead_letters.go_on(case.run_id, requested_by="ada", reason="it is mended")
    assert answer.accepted
    assert (await case.redrive.result(case.run_id)).status is RunStatus.SUCCESS
    assert _listed(await _events(case)) == [b'"DLQ_PENDING"', b'"PARTIAL"', b'"RUNNING"']
