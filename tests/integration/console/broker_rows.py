"""What brokers left behind, as tests of the console make it."""

import json
import uuid
from typing import Any

from redrive.categories import Category
from redrive.events import Envelope
from redrive.postgres.tenancy import Pool, transaction
from redrive.store.events.dead import NewDeadEvent, put_dead_event
from redrive.store.events.records import StoredEvent, put_event
from redrive.store.messages.dead import put_dead
from tests.integration.store.retries import new_dead

TYPE = "interview.completed"
SOURCE = "retry.scheduled"


def event_body(key: str, **changes: Any) -> bytes:
    """Return an event as a producer writes it."""
    event = {"dedupeKey": key, "type": TYPE, "source": "tests", "payload": {"user": "ada", "score": 3}}
    return json.dumps(event | changes).encode()


async def give_up(pool: Pool, tenant: str, **changes: Any) -> str:
    """Put a message there that was given up, and return its id."""
    message = new_dead(**changes)
    async with transaction(pool, tenant) as connection:
        await put_dead(connection, tenant, SOURCE, [message])
    return str(message.message_id)


async def bury(pool: Pool, tenant: str, body: bytes, *, stream: str = "visits") -> str:
    """Put a message there that could not become a run, and return the record's id."""
    dead = NewDeadEvent(
        tenant=tenant,
        source_stream=stream,
        source_message_id=uuid.uuid4().hex,
        origin="tests",
        event_type=TYPE,
        category=Category.UNKNOWN_MODULE,
        error_type="UnknownPipeline",
        error="no worker knows the pipeline",
        attempts=1,
    )
    return await put_dead_event(pool, dead, body)


async def store_event(pool: Pool, tenant: str, key: str = "k", **payload: Any) -> StoredEvent:
    """Put an event there whose run was never started."""
    envelope = Envelope(dedupe_key=key, type=TYPE, source="tests", payload={"user": "ada", "score": 3} | payload)
    return (await put_event(pool, tenant, envelope)).event
