"""Rows about events, for tests of the store."""

from datetime import timedelta

from redrive.categories import Category
from redrive.contracts import StepInput, StepSnapshot
from redrive.dead_letters import Replay
from redrive.events import Envelope
from redrive.policy import EVENT
from redrive.postgres.tenancy import Pool
from redrive.store.events.dead import NewDeadEvent, put_dead_event
from redrive.store.events.records import NewReplay, Stored, put_event, put_projection, put_replay

BODY = b'{"password": "hunter2"'


def envelope(key: str = "k", **payload: object) -> Envelope:
    """Return an event as a producer writes it."""
    return Envelope(dedupe_key=key, type="thing.happened", source="tests", payload=payload)


def order_of(stored: Stored, step: str = "note") -> StepInput:
    """Return the order of a projector's step."""
    event = stored.event
    return StepInput(
        run_id=event.run_id,
        tenant=event.tenant,
        pipeline="thing-happened",
        step=StepSnapshot(name=step, policy=EVENT),
        document={},
        correlation_id=event.run_id,
        event_id=event.id,
    )


def dead_message(tenant: str, message_id: str = "1-1") -> NewDeadEvent:
    """Return a message that could not become a run."""
    return NewDeadEvent(
        tenant=tenant,
        source_stream=f"stream-{tenant}",
        source_message_id=message_id,
        origin="tests",
        category=Category.VALIDATION,
        error_type="InvalidInput",
        error="event: not valid JSON",
        attempts=1,
    )


async def put_some_events(pool: Pool, tenant: str) -> None:
    """Put a row into each table about events."""
    stored = await put_event(pool, tenant, envelope())
    await put_projection(pool, order_of(stored), 1, timedelta(0))
    await put_dead_event(pool, dead_message(tenant), BODY)
    order = Replay(request_id="r", requested_by="ada", reason="a test")
    replay = NewReplay(f"{stored.event.id}:replay:r", tenant, stored.event.id, stored.event.run_id, ["note"])
    await put_replay(pool, replay, order)
