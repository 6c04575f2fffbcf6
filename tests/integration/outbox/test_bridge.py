"""The bridge from an outbox: rows become runs, at most one each, and follow what becomes of them."""

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest
import structlog

from redrive.dead_letters import LetterId
from redrive.keys import run_id_for_key
from redrive.outbox.rows import OutboxEntry, OutboxStatus
from redrive.redaction.redactor import Redactor
from redrive.store.audit import list_audit
from tests.conftest import WorkerFactory, eventually
from tests.integration.outbox.outbox_lab import OutboxLab

REPLAY = "SELECT {}.outbox_replay($1, 7, 'ann@example.com')"


async def test_row_becomes_the_run_of_its_key_and_is_delivered(lab: OutboxLab, worker: WorkerFactory) -> None:
    """The run id is computed from the key; when the run has succeeded, the row is delivered and over."""
    event_id = await lab.enqueue(5, key="order:ann:4711:place:v1")
    async with lab.bridge(), worker():
        row = await lab.becomes(event_id, OutboxStatus.DELIVERED)
    assert row.run_id == run_id_for_key(lab.tenant, "order:ann:4711:place:v1")
    assert (row.attempts, row.last_error, row.failure_history) == (0, None, [])
    assert row.ended_at
    assert lab.seen == [5]


async def test_labels_are_on_the_bridges_log_line_once_they_are_checked(lab: OutboxLab) -> None:
    """The line of a start has the run's labels; that of a row whose labels are refused has none."""
    with structlog.testing.capture_logs() as lines:
        event_id = await lab.enqueue(labels={"mission_id": "42"})
        refused = await lab.enqueue(labels={"run_id": "42"})
        async with lab.bridge():
            await lab.becomes(event_id, OutboxStatus.IN_FLIGHT)
            row = await lab.becomes(refused, OutboxStatus.FAILED)
    told = {line["event_id"]: line for line in lines if line["event"].startswith("outbox.")}
    assert told[event_id]["mission_id"] == "42"
    assert "run_id" not in told[refused]
    assert "labels.run_id" in (row.last_error or "")


@pytest.mark.parametrize("correlation_id", ["AKIAIOSFODNN7EXAMPLE", "token='abcdefgh"])
async def test_refusal_of_a_row_with_a_secret_can_be_read(lab: OutboxLab, correlation_id: str) -> None:
    """The secret is left out, and the sentence is whole: also where a token of ours is an ordinary word."""
    event_id = await lab.enqueue()
    await lab.sql("UPDATE {}.outbox SET correlation_id = $1 WHERE event_id = $2", correlation_id, UUID(event_id))
    async with lab.bridge(redactor=Redactor(own=["secret"])):
        row = await lab.becomes(event_id, OutboxStatus.FAILED)
    assert row.last_error
    assert "correlation_id: it holds what looks like a credential or a card number; " in row.last_error
    assert "give a reference, or a hash of it" in row.last_error
    assert correlation_id[-8:] not in row.last_error


async def test_row_is_in_flight_while_no_worker_is_there(lab: OutboxLab) -> None:
    """The run exists, and nobody executes it: the row says so."""
    event_id = await lab.enqueue()
    async with lab.bridge():
        row = await lab.becomes(event_id, OutboxStatus.IN_FLIGHT)
        assert row.run_id
        assert (await lab.temporal.get_workflow_handle(row.run_id).describe()).status


async def test_replay_in_sql_takes_the_parked_run_on_in_place(lab: OutboxLab, worker: WorkerFactory) -> None:
    """Seed 002's D5: the cycle goes into the history, the generation is the caller's, the same run continues."""
    lab.is_broken = True
    event_id = await lab.enqueue(1)
    async with lab.bridge(), worker():
        failed = await lab.becomes(event_id, OutboxStatus.FAILED)
        assert (failed.attempts, failed.last_error, failed.failed_step) == (1, "the shop is closed", "ship")
        assert failed.first_failed_at
        assert await lab.sql(REPLAY, failed.event_id) == "pending"
        again = await lab.becomes(event_id, OutboxStatus.FAILED, cycle=2)
        assert (again.run_id, again.replayed_by, again.generation) == (failed.run_id, "ann@example.com", 7)
        lab.is_broken = False
        await lab.sql(REPLAY, failed.event_id)
        row = await lab.becomes(event_id, OutboxStatus.DELIVERED)
    assert (row.run_id, row.key) == (failed.run_id, failed.key)
    assert [(each.cycle, each.attempts, each.generation) for each in row.failure_history] == [(1, 1, 0), (2, 1, 7)]
    assert row.failure_history[0].replayed_by == "ann@example.com"
    assert (row.attempts, row.last_error, row.first_failed_at) == (0, None, None)
    async with lab.audit_pool() as pool:
        lines = await list_audit(pool, lab.tenant)
    replays = [line for line in lines if line.action == "replay_requested"]
    assert {line.actor for line in replays} == {"ann@example.com"}
    assert len(replays) == 2


async def test_payload_that_does_not_fit_is_recorded_as_failed_with_its_field(lab: OutboxLab) -> None:
    """Without a schema in the database the bridge finds out: failed, the field's name in the error, no run."""
    event_id = await lab.enqueue(payload={"item": 5})
    async with lab.bridge():
        row = await lab.becomes(event_id, OutboxStatus.FAILED)
        assert row.last_error
        assert "item" in row.last_error
        assert (row.run_id, row.attempts, row.category) == (None, 1, "validation")
        await lab.sql(REPLAY, row.event_id)
        again = await eventually(lambda: _failed_again(lab, event_id))
        assert again.replayed_by == "ann@example.com"
    async with lab.audit_pool() as pool:
        (line,) = await list_audit(pool, lab.tenant, f"outbox-{event_id}")
    assert (line.action, line.actor) == ("event_replay_requested", "ann@example.com")


async def _failed_again(lab: OutboxLab, event_id: str) -> OutboxEntry | None:
    row = await lab.row(event_id)
    return row if row.status is OutboxStatus.FAILED and row.failure_history else None


async def test_row_follows_a_replay_and_a_discard_from_elsewhere(lab: OutboxLab, worker: WorkerFactory) -> None:
    """A command to the dead letter changes the row as well: replayed it is delivered, discarded it is over."""
    lab.is_broken = True
    kept, lost = await lab.enqueue(1), await lab.enqueue(2)
    async with lab.bridge(), worker() as running:
        letters = {}
        for event_id in (kept, lost):
            row = await lab.becomes(event_id, OutboxStatus.FAILED)
            letters[event_id] = LetterId(tenant=lab.tenant, run_id=row.run_id or "", step="ship")
        lab.is_broken = False
        await running.redrive.dead_letters.replay(letters[kept], requested_by="bob", reason="open again")
        await running.redrive.dead_letters.discard(letters[lost], requested_by="bob", reason="closed for good")
        delivered = await lab.becomes(kept, OutboxStatus.DELIVERED)
        over = await eventually(lambda: _over(lab, lost))
    assert [each.replayed_by for each in delivered.failure_history] == ["bob"]
    assert over.status is OutboxStatus.FAILED
    assert "discarded by bob" in (over.last_error or "")
    with pytest.raises(asyncpg.InvalidParameterValueError, match="has ended for good"):
        await lab.sql(REPLAY, over.event_id)


async def _over(lab: OutboxLab, event_id: str) -> OutboxEntry | None:
    row = await lab.row(event_id)
    return row if row.ended_at else None


async def test_only_failed_rows_can_be_replayed(lab: OutboxLab) -> None:
    """Anything else is refused with the reason, and nothing changes."""
    event_id = await lab.enqueue()
    row = await lab.row(event_id)
    calls = {
        "is pending: only a failed": (row.event_id, 1, "ann"),
        "no row has this id": (UUID(int=1), 1, "ann"),
        "p_new_generation": (row.event_id, None, "ann"),
        "p_replayed_by": (row.event_id, 1, ""),
    }
    for problem, values in calls.items():
        with pytest.raises(asyncpg.InvalidParameterValueError, match=problem):
            await lab.sql("SELECT {}.outbox_replay($1, $2, $3)", *values)
    assert await lab.row(event_id) == row


async def test_row_starts_not_before_its_time_and_withdrawn_never(lab: OutboxLab) -> None:
    """`run_after` is waited for by the poll; a row that was withdrawn before a bridge took it has no run."""
    withdrawn = await lab.enqueue(1)
    await lab.sql("UPDATE {}.outbox SET deleted_at = now()")
    due = datetime.now(UTC) + timedelta(seconds=1.5)
    later = await lab.enqueue(2, run_after=due)
    async with lab.bridge():
        row = await lab.becomes(later, OutboxStatus.IN_FLIGHT)
    assert row.started_at
    assert row.started_at >= due
    assert (await lab.row(withdrawn)).run_id is None


async def test_rows_of_one_ordering_key_run_one_after_another(lab: OutboxLab, worker: WorkerFactory) -> None:
    """A later one waits until the earlier is over, also while that is parked; others are not held up."""
    lab.is_broken = True
    first = await lab.enqueue(0, ordering_key="ann")
    async with lab.bridge(), worker():
        row = await lab.becomes(first, OutboxStatus.FAILED)
        later = [await lab.enqueue(number, ordering_key="ann") for number in range(1, 6)]
        lab.is_broken = False
        await lab.becomes(await lab.enqueue(9, ordering_key="bob"), OutboxStatus.DELIVERED)
        assert [(await lab.row(each)).waits for each in later] == [True] * 5
        await lab.sql(REPLAY, row.event_id)
        await lab.becomes(later[-1], OutboxStatus.DELIVERED)
    assert lab.seen == [9, 0, 1, 2, 3, 4, 5]


async def test_bridges_side_by_side_start_each_row_once(lab: OutboxLab, worker: WorkerFactory) -> None:
    """Two bridges, one of which is cancelled in the middle, as if killed: every row runs once."""
    for number in range(40):
        await lab.enqueue(number, key=f"order:{number}")
    async with worker(), lab.bridge():
        async with contextlib.AsyncExitStack() as killed:
            bridge = await killed.enter_async_context(lab.bridge())
            await asyncio.sleep(0)
            bridge.stop()
        await eventually(lambda: _all_delivered(lab, 40))
    assert sorted(lab.seen) == list(range(40))


async def _all_delivered(lab: OutboxLab, count: int) -> bool:
    return await lab.count(OutboxStatus.DELIVERED) == count
