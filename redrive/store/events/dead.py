"""Messages that could not become a run: recorded once each, and listed. Commands to them are in `commands.py`."""

import contextlib
from collections.abc import AsyncIterator
from datetime import datetime
from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from redrive.categories import Category
from redrive.events import dead_event_id_for
from redrive.postgres.paging import Page, Query
from redrive.postgres.records import Record
from redrive.postgres.tenancy import QUARANTINE, Pool, reading, transaction
from redrive.postgres.text import clean, json_text
from redrive.store.broker_records import Listing

COLUMNS: Final = """
    id, tenant, source_stream, source_message_id, origin, event_type, dedupe_key, category, error_type, error, attempts,
    last_attempt_at, status, event_id, run_id, full_size, mirrored_at, version, created_at, updated_at
"""


class DeadEventStatus(StrEnum):
    """A dead event's status. From `replaying` it goes to `replayed`, or back to `pending`."""

    PENDING = "pending"
    REPLAYING = "replaying"
    REPLAYED = "replayed"
    DISCARDED = "discarded"

    @property
    def closed(self) -> bool:
        """Tell whether nothing is left to do."""
        return self in {DeadEventStatus.REPLAYED, DeadEventStatus.DISCARDED}


class Failure(BaseModel):
    """Why a message could not become a run."""

    category: Category
    error_type: str
    error: str
    attempts: int


class NewDeadEvent(Failure):
    """A message that could not become a run, as the bridge knows it."""

    tenant: str
    source_stream: str
    source_message_id: str
    origin: str
    event_type: str | None = None
    dedupe_key: str | None = None
    full_size: int | None = Field(default=None, description="bytes of a message of which only the beginning is kept")


class DeadEvent(NewDeadEvent, Record):
    """A dead event's record, without the message."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    last_attempt_at: datetime
    status: DeadEventStatus
    event_id: str | None
    run_id: str | None
    mirrored_at: datetime | None
    version: int
    created_at: datetime
    updated_at: datetime


async def put_dead_event(pool: Pool, dead: NewDeadEvent, body: bytes) -> str:
    """Record a message, once however often it is reported, and return the record's id."""
    dead_id = dead_event_id_for(dead.tenant, dead.source_stream, dead.source_message_id, body)
    await pool.execute("SELECT put_dead_event($1, $2)", json_text(dead.model_dump() | {"id": dead_id}), body)
    return dead_id


async def get_dead_event(pool: Pool, tenant: str | None, dead_id: str) -> DeadEvent | None:
    """Return a record."""
    async with reading(pool, tenant) as connection:
        row = await connection.fetchrow(
            f"SELECT {COLUMNS} FROM dead_events WHERE id = $1",  # noqa: S608
            clean(dead_id),
        )
    return DeadEvent.model_validate(dict(row)) if row else None


async def message_of(pool: Pool, dead: DeadEvent, most: int | None = None) -> bytes:
    """Return the original message, or this many bytes of its beginning."""
    async with reading(pool, dead.tenant) as connection:
        body: bytes = await connection.fetchval(
            "SELECT substring(payload FOR coalesce($2, octet_length(payload))) FROM dead_events WHERE id = $1",
            dead.id,
            most,
        )
    return body


async def not_mirrored(pool: Pool, stream: str, limit: int = 100) -> list[tuple[str, str]]:
    """Return tenant and id of messages that are not yet on the broker's own dead letter stream, the oldest first."""
    async with reading(pool, None) as connection:
        rows = await connection.fetch(
            """
            SELECT tenant, id FROM dead_events WHERE source_stream = $1 AND mirrored_at IS NULL
            ORDER BY created_at LIMIT $2
            """,
            clean(stream),
            limit,
        )
    return [(row["tenant"], row["id"]) for row in rows]


@contextlib.asynccontextmanager
async def mirroring(pool: Pool, tenant: str, dead_id: str) -> AsyncIterator[tuple[DeadEvent, bytes] | None]:
    """Yield a message for the broker's dead letter stream; after the block it is marked as added.

    None if that is already done, or another process is doing it.
    """
    async with transaction(pool, tenant) as connection:
        row = await connection.fetchrow(
            f"""
            SELECT {COLUMNS}, payload FROM dead_events WHERE id = $1 AND mirrored_at IS NULL FOR UPDATE SKIP LOCKED
            """,  # noqa: S608
            dead_id,
        )
        if row is None:
            yield None
            return
        yield DeadEvent.model_validate(dict(row)), row["payload"]
        await connection.execute("UPDATE dead_events SET mirrored_at = now() WHERE id = $1", dead_id)


class DeadEventFilter(BaseModel):
    """Which dead events. `tenant` None means all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tenant: str | None = None
    status: DeadEventStatus | None = None
    source_stream: str | None = None
    assigned: bool = Field(default=False, description="only those that have a tenant, and are not in quarantine")


_LISTING: Final = Listing(row=DeadEvent, table="dead_events", columns=COLUMNS, at="last_attempt_at")


async def list_dead_events(
    pool: Pool, chosen: DeadEventFilter, limit: int = 50, cursor: str | None = None
) -> Page[DeadEvent]:
    """Return the dead events that failed last, after the cursor of the previous page."""
    query = Query()
    for column, value in chosen.model_dump(exclude={"assigned"}).items():
        if value is not None:
            query.where(f"{column} = {{}}", clean(value))
    if chosen.assigned:
        query.where("tenant <> {}", QUARANTINE)
    return await _LISTING.page(pool, chosen, query, limit, cursor)
