"""Events, the records of their projectors, and runs of some projectors again, by an operator's command.

Without a tenant: of all tenants. Such a run is recorded and audited before it starts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import asyncpg
from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json, to_json

from redrive.contracts import StepInput
from redrive.dead_letters import Replay
from redrive.events import Envelope, event_document, event_id_for
from redrive.field_types import Moment
from redrive.keys import run_id_for_key
from redrive.postgres.paging import Page, Query, check_limit
from redrive.postgres.tenancy import Pool, reading, transaction
from redrive.postgres.values import Record, clean, clean_or_none, json_text
from redrive.store.audit import Action, Entry, EventRef, write
from redrive.store.broker_records import Listing

_COLUMNS: Final = "id, tenant, dedupe_key, type, source, user_id, correlation_id, occurred_at, run_id, received_at"
_INSERT: Final = """
    INSERT INTO event_replays (key, tenant, event_id, run_id, projectors, requested_by, reason)
    VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING RETURNING key
"""


class ProjectionStatus(StrEnum):
    """The status of an event's projector; one without a record has not ended yet."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REPLAYING = "replaying"
    RESOLVED = "resolved"
    DISCARDED = "discarded"


class EventRow(Record):
    """An event in a list."""

    id: str
    tenant: str
    dedupe_key: str
    type: str
    source: str
    user_id: str | None
    correlation_id: str | None
    occurred_at: datetime | None
    run_id: str
    received_at: datetime


class StoredEvent(EventRow):
    """An event with its original payload."""

    payload: dict[str, Any]

    @property
    def document(self) -> dict[str, Any]:
        """What the event's projectors read."""
        return event_document(self.id, self)


class Projection(Record):
    """The outcome of one projector of an event."""

    event_id: str
    projector: str
    tenant: str
    status: ProjectionStatus
    attempt: int
    error: str | None
    run_id: str
    started_at: datetime
    completed_at: datetime


@dataclass(frozen=True)
class Stored:
    """The result of storing an event. One that has a run must not be started again: Temporal may have forgotten it."""

    event: StoredEvent
    is_new: bool
    has_run: bool


async def put_event(pool: Pool, tenant: str, envelope: Envelope) -> Stored:
    """Store an event. Of two with the same dedupe key, the first is kept and returned."""
    given = {
        "id": event_id_for(tenant, envelope.dedupe_key),
        "tenant": tenant,
        **envelope.model_dump(include={"dedupe_key", "type", "source", "user_id", "correlation_id", "occurred_at"}),
        "run_id": run_id_for_key(tenant, envelope.dedupe_key),
    }
    row = await pool.fetchrow(
        "SELECT is_new, has_run, (stored).* FROM put_event($1, $2)",
        json_text(given),
        to_json(envelope.payload).decode(),
    )
    if row is None:
        raise LookupError(f"event {given['id']!r} was not written")
    return Stored(_stored(row), row["is_new"], row["has_run"])


async def put_run_of_event(pool: Pool, event: StoredEvent, run_id: str) -> None:
    """Record that the event's key leads to another run than the computed one."""
    async with transaction(pool, event.tenant) as connection:
        await connection.execute("UPDATE events SET run_id = $2 WHERE id = $1", event.id, run_id)


async def put_projection(pool: Pool, given: StepInput, attempt: int, took: timedelta) -> None:
    """Record that a projector succeeded, in one round trip."""
    facts = {
        "event_id": given.event_id,
        "projector": given.step.name,
        "tenant": given.tenant,
        "attempt": attempt,
        "run_id": given.run_id,
    }
    await pool.execute("SELECT put_projection($1, $2)", json_text(facts), took)


async def get_event(pool: Pool, tenant: str | None, event_id: str) -> StoredEvent | None:
    """Return an event."""
    async with reading(pool, tenant) as connection:
        row = await connection.fetchrow(
            f"SELECT {_COLUMNS}, payload FROM events WHERE id = $1",  # noqa: S608
            clean_or_none(event_id),
        )
    return _stored(row) if row else None


async def projections_of(pool: Pool, tenant: str | None, event_id: str) -> list[Projection]:
    """Return the records of an event's projectors, the earliest first."""
    async with reading(pool, tenant) as connection:
        rows = await connection.fetch(
            "SELECT * FROM event_projections WHERE event_id = $1 ORDER BY started_at, projector", event_id
        )
    return [Projection.model_validate(dict(row)) for row in rows]


async def failed_projections(pool: Pool, tenant: str | None, limit: int) -> list[Projection]:
    """Return projectors that failed for good, those that wait longest first."""
    check_limit(limit)
    query = Query()
    query.where("status = 'failed'")
    if tenant is not None:
        query.where("tenant = {}", tenant)
    async with reading(pool, tenant) as connection:
        rows = await connection.fetch(
            f"""
            SELECT * FROM event_projections WHERE {query.sql}
            ORDER BY completed_at, event_id LIMIT {query.add(limit)}
            """,  # noqa: S608
            *query.parameters,
        )
    return [Projection.model_validate(dict(row)) for row in rows]


class EventFilter(BaseModel):
    """Which events. `tenant` None means all; `failed` are those with a failed projector."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tenant: str | None = None
    type: str | None = None
    dedupe_key: str | None = None
    failed: bool = False
    since: Moment | None = None


_LISTING: Final = Listing(row=EventRow, table="events", columns=_COLUMNS, at="received_at")


async def list_events(pool: Pool, chosen: EventFilter, limit: int = 50, cursor: str | None = None) -> Page[EventRow]:
    """Return the newest events, after the cursor of the previous page."""
    query = Query()
    if chosen.tenant is not None:
        query.where("tenant = {}", chosen.tenant)
    if chosen.type is not None:
        query.where("type = {}", clean_or_none(chosen.type))
    if chosen.dedupe_key is not None:
        query.where("dedupe_key = {}", clean_or_none(chosen.dedupe_key))
    if chosen.failed:
        own = f"AND tenant = {query.add(chosen.tenant)}" if chosen.tenant is not None else ""
        query.where(f"id IN (SELECT event_id FROM event_projections WHERE status = 'failed' {own})")  # noqa: S608
    if chosen.since is not None:
        query.where("received_at >= {}", chosen.since)
    return await _LISTING.page(pool, chosen, query, limit, cursor)


def _stored(row: asyncpg.Record) -> StoredEvent:
    return StoredEvent.model_validate(dict(row) | {"payload": from_json(row["payload"])})


@dataclass(frozen=True)
class NewReplay:
    """A run of some projectors of an event; `key` is the run's."""

    key: str
    tenant: str
    event_id: str
    run_id: str
    projectors: Sequence[str]


async def put_start(pool: Pool, event: StoredEvent, command: Replay) -> None:
    """Record that the run of an event, which never started, is to be started."""
    async with transaction(pool, event.tenant) as connection:
        await write(connection, _entry(EventRef(event.tenant, event.id, event.run_id), command, []))


async def put_replay(pool: Pool, replay: NewReplay, command: Replay) -> None:
    """Record that projectors are to run again. The same command again changes nothing."""
    async with transaction(pool, replay.tenant) as connection:
        is_new = await connection.fetchval(
            _INSERT,
            replay.key,
            replay.tenant,
            replay.event_id,
            replay.run_id,
            list(replay.projectors),
            clean(command.requested_by),
            clean(command.reason),
        )
        if is_new is None:
            return
        about = EventRef(replay.tenant, replay.event_id, replay.run_id)
        await write(connection, _entry(about, command, list(replay.projectors)))


def _entry(about: EventRef, command: Replay, projectors: list[str]) -> Entry:
    return Entry(
        action=Action.PROJECTORS_REPLAYED,
        letter=about,
        actor=command.requested_by,
        reason=command.reason,
        request_id=command.request_id,
        after={"projectors": projectors},
    )
