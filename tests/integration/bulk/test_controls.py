"""Pause, resume and stop: by update and by signal, who did it, and what becomes of the items."""

import pytest
from temporalio.client import WorkflowFailureError

from redrive.bulk import BulkAnswer, BulkStatus, ItemStatus
from redrive.errors import BulkNotFound, BulkRefused, InvalidInput
from tests.conftest import eventually
from tests.integration.bulk.lab import WHO, Case

APPLIED, SKIPPED = ItemStatus.APPLIED, ItemStatus.SKIPPED


async def _one_under_way(case: Case, *, parallelism: int = 1) -> BulkAnswer:
    """Start a bulk operation whose replays wait for the service."""
    case.mend()
    case.service.open.clear()
    bulk = await case.start(case.command(parallelism=parallelism))

    async def is_out() -> bool:
        return (await case.view(bulk)).progress.accepted == parallelism

    await eventually(is_out)
    return bulk


async def _applied(case: Case, bulk: BulkAnswer, count: int) -> None:
    async def has() -> bool:
        return (await case.view(bulk)).progress.applied == count

    await eventually(has)


async def test_paused_it_sends_nothing_and_resumed_it_goes_on(case: Case) -> None:
    """What is under way ends and is counted; nothing else is sent until somebody resumes it."""
    await case.park(1, 2, 3)
    bulk = await _one_under_way(case)
    answer = await case.redrive.bulk.pause(
        bulk.bulk_id, tenant=case.tenant, requested_by="bob", reason="the rate of errors"
    )
    assert answer.status is BulkStatus.PAUSED
    case.service.open.set()
    await _applied(case, bulk, 1)
    view = await case.view(bulk)
    assert (view.status, view.progress.pending) == (BulkStatus.PAUSED, 2)
    await case.redrive.bulk.resume(bulk.bulk_id, tenant=case.tenant, requested_by="bob", reason="it is well")
    assert (await case.until(bulk, BulkStatus.DONE)).progress.applied == 3
    told = [(entry["action"], entry["actor"], entry["reason"]) for entry in await case.audit()]
    assert ("bulk_paused", "bob", "the rate of errors") in told
    assert ("bulk_resumed", "bob", "it is well") in told


async def test_stopped_it_skips_the_rest(case: Case) -> None:
    """What is under way ends; the rest is skipped with the reason; it cannot be resumed."""
    await case.park(1, 2, 3)
    bulk = await _one_under_way(case)
    await case.redrive.bulk.stop(bulk.bulk_id, tenant=case.tenant, requested_by="bob", reason="enough")
    with pytest.raises(BulkRefused, match="is STOPPING: there is nothing to resume"):
        await case.redrive.bulk.resume(bulk.bulk_id, tenant=case.tenant, requested_by="bob", reason="no, go on")
    case.service.open.set()
    view = await case.until(bulk, BulkStatus.STOPPED)
    assert (view.progress.applied, view.progress.skipped, view.stopped_because) == (1, 2, "enough")
    assert {item.why for item in await case.items(bulk) if item.status is SKIPPED} == {
        "the bulk operation was stopped: enough"
    }
    with pytest.raises(BulkNotFound, match="is under way"):
        await case.redrive.bulk.stop(bulk.bulk_id, tenant=case.tenant, requested_by="bob", reason="enough")


async def test_signals_do_the_same_and_nonsense_harms_nothing(case: Case) -> None:
    """As from Temporal's Web UI: what cannot be read is ignored, a command is carried out."""
    await case.park(1, 2)
    bulk = await _one_under_way(case)
    handle = case.temporal.get_workflow_handle(bulk.bulk_id)
    await handle.signal("stop", "nonsense")
    await handle.signal("explode", WHO)
    await handle.signal("stop", WHO)
    await case.until(bulk, BulkStatus.STOPPING)
    case.service.open.set()
    view = await case.until(bulk, BulkStatus.STOPPED)
    assert (view.progress.applied, view.progress.skipped) == (1, 1)


async def test_canceled_in_temporal_it_stops_in_order(case: Case) -> None:
    """No item is left without an end, whoever cancels the workflow."""
    await case.park(1, 2)
    bulk = await _one_under_way(case)
    handle = case.temporal.get_workflow_handle(bulk.bulk_id)
    await handle.cancel()
    await case.until(bulk, BulkStatus.STOPPING)
    case.service.open.set()
    view = await case.until(bulk, BulkStatus.STOPPED)
    assert (view.progress.applied, view.progress.skipped) == (1, 1)
    with pytest.raises(WorkflowFailureError):
        await handle.result()


async def test_no_more_than_allowed_are_under_way_at_once(case: Case) -> None:
    """Parallelism bounds what is carried out, not only what is sent."""
    await case.park(*range(5))
    bulk = await _one_under_way(case, parallelism=2)
    view = await case.view(bulk)
    assert (view.progress.accepted, view.progress.sending, view.progress.pending) == (2, 0, 3)
    case.service.open.set()
    await case.until(bulk, BulkStatus.DONE)


async def test_a_command_without_a_reason_is_refused(case: Case) -> None:
    """Every action has a name and a reason on it."""
    with pytest.raises(InvalidInput, match="reason"):
        await case.redrive.bulk.stop("bulk-1", tenant=case.tenant, requested_by="bob", reason="")
