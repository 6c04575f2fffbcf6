"""The Redis bridge in trouble: dead consumers, entries that fail, a server that loses its memory."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio.client import Client

from redrive import Event, ModuleContext, Pipeline, Registry, RunStatus
from redrive.bridges.events.intake import Accepted, Message, Problem
from redrive.bridges.labels import Labels
from redrive.bridges.redis.bridge import Limits
from redrive.events import Envelope
from redrive.postgres.tenancy import QUARANTINE, transaction
from redrive.settings import Settings
from redrive.store.events.dead import get_dead_event, put_dead_event
from redrive.store.runs import FinishedRun, put_finished
from tests.conftest import eventually
from tests.integration.events.event_lab import QUICK, EventLab
from tests.integration.events.valkey import Valkey
from tests.integration.store.event_rows import dead_message

IMPATIENT = Limits(held=20, claim_idle=timedelta(milliseconds=300), policy=QUICK)
PATIENT = Limits(held=20, claim_idle=timedelta(seconds=4), policy=QUICK)


class Given(BaseModel):
    event: Event[dict[str, Any]]


class Done(BaseModel):
    pass


async def note(ctx: ModuleContext, given: Given) -> Done:
    return Done()


@pytest.fixture
async def lab(valkey: Valkey, settings: Settings, temporal: Client, registry: Registry) -> AsyncIterator[EventLab]:
    """A stream, without a worker: that a run exists is all that these tests need."""
    Pipeline("thing-happened", registry.module("note")(note), registry=registry)
    lab = EventLab(valkey, settings, temporal, registry)
    async with lab.database:
        yield lab


class Stumbling:
    """What takes events over, and fails a number of times first."""

    def __init__(self, lab: EventLab, monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
        self.tries = 0
        self._failures = failures
        self._accept = lab.intake.accept
        monkeypatch.setattr(lab.intake, "accept", self.accept)

    async def accept(self, message: Message, envelope: Envelope) -> Accepted:
        self.tries += 1
        if self.tries <= self._failures:
            raise RuntimeError(f"stumbled {self.tries} times")
        return await self._accept(message, envelope)


async def _abandon(lab: EventLab, *, deliveries: int = 1) -> None:
    """Take the next entry as a consumer that dies with it, after so many deliveries."""
    redis = lab.valkey.client
    await redis.xgroup_create(lab.stream, lab.events.group, id="0", mkstream=True)
    ((_, ((entry_id, _),)),) = await redis.xreadgroup(lab.events.group, "dead", {lab.stream: ">"}, count=1)
    await redis.xclaim(lab.stream, lab.events.group, "dead", 0, [entry_id], idle=60_000, retrycount=deliveries)


async def _stored(lab: EventLab, count: int) -> bool:
    return len(await lab.stored()) == count and await lab.is_done()


async def test_entry_of_a_dead_consumer_is_taken_over(lab: EventLab) -> None:
    """An entry that its consumer has held silently for too long is another one's, and becomes safe."""
    await lab.emit("a")
    await _abandon(lab)
    async with lab.bridge(IMPATIENT):
        await eventually(lambda: _stored(lab, 1))


async def test_entry_that_waits_is_kept(lab: EventLab) -> None:
    """While the database is away, the server is told again and again that the entry is held. No delivery is counted."""
    lab.database.closed = True
    async with lab.bridge(PATIENT):
        await lab.emit("a")
        await eventually(lambda: _held(lab, 1))
        before = await _pending(lab)
        seen = [before["time_since_delivered"]]
        await eventually(lambda: _is_younger(lab, seen))
        after = await _pending(lab)
        assert (after["consumer"], after["times_delivered"]) == (before["consumer"], 1)
        lab.database.closed = False
        await eventually(lambda: _stored(lab, 1))


async def _pending(lab: EventLab) -> dict[str, Any]:
    (pending,) = await lab.valkey.client.xpending_range(lab.stream, lab.events.group, "-", "+", 10)
    found: dict[str, Any] = pending
    return found


async def _is_younger(lab: EventLab, seen: list[int]) -> bool:
    """Tell whether the entry's idle time has begun anew since it was last looked at."""
    seen.append((await _pending(lab))["time_since_delivered"])
    return seen[-1] < seen[-2]


async def _held(lab: EventLab, count: int) -> bool:
    return await lab.held() == count


async def test_entry_that_fails_is_tried_again_by_its_policy(lab: EventLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure of its own costs an entry a delivery; as long as there are some left it is tried again."""
    stumbling = Stumbling(lab, monkeypatch, QUICK.max_attempts - 1)
    await lab.emit("a")
    async with lab.bridge():
        await eventually(lambda: _stored(lab, 1))
    assert stumbling.tries == QUICK.max_attempts
    assert await lab.dead() == []


async def test_entry_that_always_fails_is_recorded(lab: EventLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """When its deliveries are used up, it is recorded with the last error, and the next entry is taken."""
    stumbling = Stumbling(lab, monkeypatch, QUICK.max_attempts)
    await lab.emit("a")
    async with lab.bridge():
        await eventually(lambda: _dead(lab, 1))
        await lab.emit("b")
        await eventually(lambda: _stored(lab, 1))
    (dead,) = await lab.dead()
    assert stumbling.tries == QUICK.max_attempts + 1
    assert (dead.attempts, dead.error, dead.dedupe_key) == (QUICK.max_attempts, "stumbled 5 times", "a")


async def _dead(lab: EventLab, count: int) -> bool:
    return len(await lab.dead()) == count and await lab.is_done()


async def test_entry_that_kills_its_consumers_is_recorded_untried(
    lab: EventLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry whose consumers died as often as the policy allows tries is not tried by the next one."""
    stumbling = Stumbling(lab, monkeypatch, 0)
    await lab.emit("a")
    await _abandon(lab, deliveries=QUICK.max_attempts)
    async with lab.bridge(IMPATIENT):
        await eventually(lambda: _dead(lab, 1))
    (dead,) = await lab.dead()
    assert stumbling.tries == 0
    assert f"delivered {QUICK.max_attempts} times" in dead.error
    # Nobody looked into it, so nobody can tell whose it is.
    assert (dead.tenant, dead.dedupe_key) == (QUARANTINE, None)


async def test_server_that_lost_its_memory_is_joined_again(lab: EventLab) -> None:
    """Stream and group are gone: what was acknowledged is safe, what is held becomes safe, new entries are taken."""
    async with lab.bridge():
        await lab.emit("safe")
        await eventually(lambda: _stored(lab, 1))
        lab.database.closed = True
        await lab.emit("held")
        await eventually(lambda: _held(lab, 1))
        await lab.valkey.client.delete(lab.stream)
        await lab.emit("new")
        lab.database.closed = False
        await eventually(lambda: _stored(lab, 3))
    assert {row.dedupe_key for row in await lab.stored()} == {"safe", "held", "new"}


async def test_message_recorded_by_a_bridge_that_died_reaches_the_stream_once(lab: EventLab) -> None:
    """A row that is not on the stream of dead ones is put there by the next bridge, also if a dead one had put it."""
    intake = lab.intake
    tenant, dead_id = await intake.bury(Message(lab.stream, "1-1", b"{"), _problem(lab))
    async with lab.bridge():
        await eventually(lambda: _mirrored(lab, 1))
        async with transaction(await lab.database.pool(), tenant) as connection:
            await connection.execute("UPDATE dead_events SET mirrored_at = NULL WHERE id = $1", dead_id)
    async with lab.bridge():
        await eventually(lambda: _is_marked(lab))
    assert [entry["dlqId"] for entry in await lab.dead_entries()] == [dead_id]


def _problem(lab: EventLab) -> Problem:
    return Problem(ValueError("no"), 1, Labels(lab.tenant))


async def _mirrored(lab: EventLab, count: int) -> bool:
    return len(await lab.dead_entries()) == count and await _is_marked(lab)


async def _is_marked(lab: EventLab) -> bool:
    return all(row.mirrored_at for row in await lab.dead())


async def test_another_message_with_the_same_id_is_recorded_too(lab: EventLab) -> None:
    """A server without memory may give an id again: the record of the first message does not stand for the second."""
    intake = lab.intake
    ids = {await intake.bury(Message(lab.stream, "1-1", body), _problem(lab)) for body in (b"{", b"[", b"{")}
    assert len(ids) == len(await lab.dead()) == 2


async def test_each_tenant_that_reads_a_stream_has_its_record(lab: EventLab) -> None:
    """Two tenants that cannot take the same message both hear of it."""
    pool = await lab.database.pool()
    tenants = [lab.tenant, f"{lab.tenant}-too"]
    message = dead_message(lab.tenant)
    for tenant in tenants:
        dead_id = await put_dead_event(pool, message.model_copy(update={"tenant": tenant}), b"{")
        assert await get_dead_event(pool, tenant, dead_id)


async def test_event_is_not_run_again_when_temporal_has_forgotten_its_run(
    lab: EventLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A duplicate that comes after Temporal's retention finds the trace that the run has left, and starts nothing."""
    intake = lab.intake
    body = b'{"dedupeKey": "a", "type": "thing.happened", "source": "tests"}'
    first = await intake.take(Message(lab.stream, "1-1", body))
    await put_finished(
        await lab.database.pool(),
        FinishedRun(
            run_id=first.run_id,
            tenant=lab.tenant,
            pipeline="thing-happened",
            status=RunStatus.SUCCESS,
            correlation_id=None,
            idempotency_key="a",
            started_at=datetime.now(UTC),
            revision=1,
        ),
    )
    monkeypatch.setattr(intake, "start", None)
    second = await intake.take(Message(lab.stream, "2-1", body))
    assert (second.run_id, second.event_id, second.is_new) == (first.run_id, first.event_id, False)
