"""Events and their projectors, on a real worker: stored once, projected once, each projector with a record."""

import json
import uuid
from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from redrive import RunStatus
from redrive.bridges.events.replays import EventReplays
from redrive.dead_letters import Discard, Replay
from redrive.errors import EventNotFound, InvalidInput, VersionChanged
from redrive.modules import Pipeline, Registry
from redrive.postgres.tenancy import QUARANTINE
from redrive.settings import Settings
from redrive.store.audit import list_audit, verify
from redrive.store.events.dead import DeadEventStatus, discard
from redrive.store.events.records import EventRow, Projection
from redrive.worker import running_worker
from tests.conftest import eventually
from tests.integration.events.event_lab import EventLab, envelope
from tests.integration.events.projectors import AWAY, WRONG, Tables, register
from tests.integration.events.valkey import Valkey

TYPE = "interview.completed"


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture
async def lab(
    valkey: Valkey, settings: Settings, temporal: Client, registry: Registry, tables: Tables
) -> AsyncIterator[EventLab]:
    """A worker with two projectors, a bridge that runs, and a stream."""
    register(registry, tables)
    lab = EventLab(valkey, settings, temporal, registry)
    async with running_worker(settings, registry), lab.database, lab.bridge():
        yield lab
        proofs = await verify(await lab.database.pool(), lab.tenant)
    assert all(proof.is_whole for proof in proofs)


@pytest.fixture
def replays(lab: EventLab, temporal: Client) -> EventReplays:
    return EventReplays(temporal, lab.settings.task_queue, lab.redrive, lab.database, lab.intake)


def an_order(request_id: str = "") -> Replay:
    return Replay(request_id=request_id or uuid.uuid4().hex, requested_by="ada", reason="a test")


async def _only_event(lab: EventLab) -> EventRow:
    await eventually(lambda: _stored(lab, 1))
    (event,) = await lab.stored()
    return event


async def _stored(lab: EventLab, count: int) -> bool:
    return len(await lab.stored()) == count and await lab.is_done()


async def _reached(lab: EventLab, event_id: str, **wanted: str) -> dict[str, Projection]:
    """Wait until the projectors have these statuses; underscores stand for hyphens."""

    async def look() -> dict[str, Projection] | None:
        found = await lab.projections(event_id)
        statuses = {name.replace("-", "_"): record.status.value for name, record in found.items()}
        return found if statuses == wanted else None

    return await eventually(look)


async def test_duplicate_events_give_one_row_and_stable_projections(lab: EventLab, tables: Tables) -> None:
    """Drill 2: the same event five times, later with other content, is one event, and one call of each projector."""
    for _ in range(5):
        await lab.emit("event:ada:1", type_=TYPE, user="ada", score=3)
    event = await _only_event(lab)
    records = await _reached(lab, event.id, qscore="succeeded", service_session="succeeded")
    await lab.emit("event:ada:1", type_=TYPE, user="ada", score=99)
    await eventually(lab.is_done)
    assert await _only_event(lab) == event
    assert await lab.projections(event.id) == records
    assert (tables.scores, dict(tables.calls)) == ({"ada": 3}, {"qscore": 1, "service-session": 1})
    assert {record.run_id for record in records.values()} == {event.run_id}
    assert all(record.attempt == 1 and record.started_at <= record.completed_at for record in records.values())


async def test_failed_projector_is_replayed_in_place(lab: EventLab, tables: Tables, replays: EventReplays) -> None:
    """Drill 4: a dead event is replayed by name; its run goes on, and the projection is there."""
    tables.broken["qscore"] = AWAY
    await lab.emit("event:ada:2", type_=TYPE, user="ada", score=4)
    event = await _only_event(lab)
    records = await _reached(lab, event.id, qscore="failed")
    assert records["qscore"].error == str(AWAY)
    assert records["qscore"].attempt == 2
    tables.broken.clear()
    order = an_order()
    (answer,) = await replays.event(lab.tenant, event.id, [], order)
    assert answer.accepted
    await _reached(lab, event.id, qscore="succeeded", service_session="succeeded")
    assert await replays.event(lab.tenant, event.id, [], order) == [answer]
    assert dict(tables.calls)["qscore"] == 3
    assert (tables.scores, tables.sessions) == ({"ada": 4}, {"event:ada:2": 4})
    assert (await lab.redrive.result(event.run_id)).status is RunStatus.SUCCESS


async def test_projector_runs_again_alone(lab: EventLab, tables: Tables, replays: EventReplays) -> None:
    """One projector of a finished event runs again on the stored payload; the other is not touched."""
    await lab.emit("event:ada:3", type_=TYPE, user="ada", score=5)
    event = await _only_event(lab)
    before = await _reached(lab, event.id, qscore="succeeded", service_session="succeeded")
    tables.bonus = 10
    order = an_order()
    (answer,) = await replays.event(lab.tenant, event.id, ["qscore"], order)
    (again,) = await replays.event(lab.tenant, event.id, ["qscore"], order)
    assert answer.run_id
    assert again.run_id == answer.run_id
    await lab.redrive.result(answer.run_id)
    after = await _reached(lab, event.id, qscore="succeeded", service_session="succeeded")
    assert after["service-session"] == before["service-session"]
    assert after["qscore"].run_id == answer.run_id != event.run_id
    assert (tables.scores, dict(tables.calls)) == ({"ada": 15}, {"qscore": 2, "service-session": 1})
    assert await _only_event(lab) == event


async def test_later_projector_reads_what_the_earlier_one_returned(
    lab: EventLab, tables: Tables, replays: EventReplays
) -> None:
    """A projector that runs alone has the outputs of the others, and a failure of it is recorded and replayed, too."""
    await lab.emit("event:ada:4", type_=TYPE, user="ada", score=6)
    event = await _only_event(lab)
    await _reached(lab, event.id, qscore="succeeded", service_session="succeeded")
    tables.broken["service-session"] = WRONG
    (answer,) = await replays.event(lab.tenant, event.id, ["service-session"], an_order())
    records = await _reached(lab, event.id, qscore="succeeded", service_session="failed")
    assert records["service-session"].run_id == answer.run_id
    tables.broken.clear()
    tables.sessions.clear()
    (again,) = await replays.event(lab.tenant, event.id, ["service-session"], an_order())
    assert again.accepted
    assert again.run_id == answer.run_id
    await _reached(lab, event.id, qscore="succeeded", service_session="succeeded")
    assert tables.sessions == {"event:ada:4": 6}
    assert tables.calls["qscore"] == 1


async def test_replay_names_what_is_wrong(lab: EventLab, replays: EventReplays) -> None:
    """An unknown event, projector or dead event is refused by name."""
    await lab.emit("event:ada:5", type_=TYPE, user="ada", score=6)
    event = await _only_event(lab)
    with pytest.raises(InvalidInput, match=r"'nobody'.*qscore, service-session"):
        await replays.event(lab.tenant, event.id, ["nobody"], an_order())
    with pytest.raises(EventNotFound, match="no event has the id 'event-x'"):
        await replays.event(lab.tenant, "event-x", [], an_order())
    with pytest.raises(EventNotFound, match="no event has the id"):
        await replays.event("somebody-else", event.id, [], an_order())
    with pytest.raises(EventNotFound, match="no dead event has the id"):
        await replays.dead_event(lab.tenant, "dead-event-x", an_order())


POISON = {
    "not JSON": ("{", "not valid JSON"),
    "not an object": ("[1]", "valid dictionary"),
    "no dedupe key": (json.dumps({"type": TYPE, "source": "tests"}), "dedupeKey"),
    "a wrong payload": (json.dumps(envelope("event:bad", TYPE, user="ada")), "event.payload.score"),
    "an unknown pipeline": (json.dumps(envelope("event:bad", "nobody.knows")), "nobody-knows"),
    "an empty key": (json.dumps(envelope("", TYPE, user="ada", score=1)), "dedupeKey"),
}


async def test_poison_is_recorded_and_put_on_the_dead_letter_stream(lab: EventLab) -> None:
    """Whatever is wrong with a message: one row, one entry on the stream beside it, the reason in both, no event."""
    ids = [await lab.put(body) for body, _ in POISON.values()]
    ids.append(await lab.valkey.client.xadd(lab.stream, {"other": "field"}))
    await eventually(lab.is_done)
    rows = {row.source_message_id: row for row in await lab.dead()}
    assert sorted(rows) == sorted(ids)
    for entry_id, (_, reason) in zip(ids, POISON.values(), strict=False):
        assert reason in rows[entry_id].error
        assert rows[entry_id].status is DeadEventStatus.PENDING
        assert rows[entry_id].mirrored_at
    entries = {entry["originId"]: entry for entry in await lab.dead_entries()}
    assert sorted(entries) == sorted(ids)
    first = entries[ids[0]]
    assert first["event"] == "{"
    assert first["origin"] == lab.stream
    assert (first["class"], first["attempts"], first["tenant"]) == ("validation", "1", QUARANTINE)
    assert first["reason"] == rows[ids[0]].error
    assert await lab.stored() == []


async def test_corrected_event_with_the_same_key_is_taken(lab: EventLab, tables: Tables) -> None:
    """A message that was refused does not stand in the way of a better one with its dedupe key."""
    await lab.emit("event:ada:6", type_=TYPE, user="ada")
    await lab.emit("event:ada:6", type_=TYPE, user="ada", score=8)
    event = await _only_event(lab)
    await _reached(lab, event.id, qscore="succeeded", service_session="succeeded")
    assert len(await lab.dead()) == 1
    assert tables.scores == {"ada": 8}


async def test_dead_event_is_replayed_once_its_pipeline_is_there(
    lab: EventLab, registry: Registry, tables: Tables, replays: EventReplays
) -> None:
    """A replay that fails leaves the record pending and says why; one that works is the event's run, once."""
    await lab.emit("event:ada:7", type_="interview.moved", user="ada", score=7)
    await eventually(lab.is_done)
    (dead,) = await lab.dead()
    failed = await replays.dead_event(lab.tenant, dead.id, an_order())
    assert not failed.accepted
    assert "interview-moved" in failed.message
    (still,) = await lab.dead()
    assert (still.status, still.attempts) == (DeadEventStatus.PENDING, 2)
    Pipeline("interview-moved", *registry.pipelines["interview-completed"].modules, registry=registry)
    order = an_order()
    done = await replays.dead_event(lab.tenant, dead.id, order)
    assert done.accepted
    assert await replays.dead_event(lab.tenant, dead.id, order) == done
    (closed,) = await lab.dead()
    event = await _only_event(lab)
    assert (closed.status, closed.event_id, closed.run_id) == (DeadEventStatus.REPLAYED, event.id, event.run_id)
    assert event.dedupe_key == "event:ada:7"
    await _reached(lab, event.id, qscore="succeeded", service_session="succeeded")
    late = await replays.dead_event(lab.tenant, dead.id, an_order())
    assert (late.accepted, late.message) == (False, "the dead event is replayed: there is nothing left to replay")
    lines = await list_audit(await lab.database.pool(), lab.tenant, dead.id)
    assert [line.action for line in reversed(lines)] == [
        "event_dead_lettered",
        "event_replay_requested",
        "event_replay_outcome",
        "event_replay_requested",
        "event_replay_outcome",
        "refused",
    ]
    assert lines[2].actor == "ada"


async def test_discarded_event_stays_where_it_is(lab: EventLab, replays: EventReplays) -> None:
    """An operator gives a message up: who and why is in the audit log, and it cannot be replayed."""
    await lab.put(f'{{"tenant": "{lab.tenant}", "type"')
    await eventually(lab.is_done)
    (dead,) = await lab.dead()
    pool = await lab.database.pool()
    order = Discard(request_id="r1", requested_by="ada", reason="a producer's test")
    with pytest.raises(VersionChanged):
        await discard(pool, dead, order, frozenset({"99"}))
    answer = await discard(pool, dead, order, frozenset({str(dead.version)}))
    assert await discard(pool, dead, order) == answer
    assert (await lab.dead())[0].status is DeadEventStatus.DISCARDED
    assert not (await replays.dead_event(lab.tenant, dead.id, an_order())).accepted
    (_, line, *_) = await list_audit(pool, lab.tenant, dead.id)
    assert (line.action, line.actor, line.reason) == ("event_discarded", "ada", "a producer's test")


async def test_whole_event_runs_again(lab: EventLab, replays: EventReplays) -> None:
    """An event that has no failed projector and is replayed without naming one runs all of them, in another run."""
    await lab.emit("event:ada:8", type_=TYPE, user="ada", score=1)
    event = await _only_event(lab)
    await _reached(lab, event.id, qscore="succeeded", service_session="succeeded")
    (answer,) = await replays.event(lab.tenant, event.id, [], an_order())
    assert answer.projectors == ["qscore", "service-session"]
    assert answer.run_id
    assert (await lab.redrive.result(answer.run_id)).status is RunStatus.SUCCESS
