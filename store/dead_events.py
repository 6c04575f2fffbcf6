"""Messages that could not become a run: every change of one, each in one transaction with its line in the audit log."""

import contextlib
from collections.abc import AsyncIterator
from datetime import datetime
from enum import StrEnum
from typing import Final

import asyncpg
from pydantic import BaseModel, ConfigDict

from redrive.errors import Category, InvalidInput
from redrive.events import dead_event_id_for
from store.audit import Action, Entry, EventRef, write
from store.paging import Page, Place, Query, check_limit, read_cursor, write_cursor
from store.records import Record
from store.tenancy import Connection, Pool, reading, transaction
from store.text import clean, json_text

_COLUMNS: Final = """
    id, tenant, source_stream, source_message_id, origin, event_type, dedupe_key, category, error_type, error, attempts,
    last_attempt_at, status, event_id, run_id, mirrored_at, version, created_at, updated_at
"""


class DeadEventStatus(StrEnum):
    """Where a dead event is. From `replaying` it goes to `replayed`, or back to `pending`."""

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
    """Record a message, once however often it is told, and return the record's id."""
    given = dead.model_dump() | {"id": dead_event_id_for(dead.source_stream, dead.source_message_id, body)}
    await pool.execute("SELECT put_dead_event($1, $2)", json_text(given), body)
    return str(given["id"])


async def get_dead_event(pool: Pool, tenant: str | None, dead_id: str) -> DeadEvent | None:
    """Return a record."""
    async with reading(pool, tenant) as connection:
        row = await _read(connection, dead_id)
    return DeadEvent.model_validate(dict(row)) if row else None


async def message_of(pool: Pool, tenant: str, dead_id: str) -> bytes:
    """Return the message as it came."""
    async with reading(pool, tenant) as connection:
        body: bytes | None = await connection.fetchval("SELECT payload FROM dead_events WHERE id = $1", dead_id)
    if body is None:
        raise InvalidInput(f"no dead event has the id {dead_id!r}")
    return body


async def not_mirrored(pool: Pool, stream: str, limit: int = 100) -> list[tuple[str, str]]:
    """Return tenant and id of messages that are not on the broker's own dead letter stream yet, the oldest first."""
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
    """Hand out a message that is to be put on the broker's dead letter stream; after the block it is marked as put.

    None when that is done already, or somebody else is doing it.
    """
    async with transaction(pool, tenant) as connection:
        row = await connection.fetchrow(
            f"""
            SELECT {_COLUMNS}, payload FROM dead_events WHERE id = $1 AND mirrored_at IS NULL FOR UPDATE SKIP LOCKED
            """,  # noqa: S608
            dead_id,
        )
        if row is None:
            yield None
            return
        yield DeadEvent.model_validate(dict(row)), row["payload"]
        await connection.execute("UPDATE dead_events SET mirrored_at = now() WHERE id = $1", dead_id)


async def begin_replay(pool: Pool, tenant: str, dead_id: str, *, by: str, reason: str, request_id: str) -> DeadEvent:
    """Take a dead event for a replay. One that is being replayed can be taken again: whoever had it may have died."""
    return await _change(pool, tenant, dead_id, DeadEventStatus.REPLAYING, _Who(by, reason, request_id))


async def end_replay(
    pool: Pool, dead: DeadEvent, outcome: "Failure | tuple[str, str]", *, request_id: str
) -> DeadEvent:
    """Record what became of a replay: the ids of the event and its run, or why there is none."""
    if isinstance(outcome, Failure):
        return await _fail(pool, dead, outcome, request_id)
    async with transaction(pool, dead.tenant) as connection:
        event_id, run_id = outcome
        row = await connection.fetchrow(
            f"""
            UPDATE dead_events SET status = 'replayed', event_id = $2, run_id = $3, version = version + 1,
                updated_at = now() WHERE id = $1 AND status <> 'replayed' RETURNING {_COLUMNS}
            """,  # noqa: S608
            dead.id,
            event_id,
            run_id,
        )
        if row is None:
            return dead
        await write(connection, _outcome_entry(dead, row, request_id))
    return DeadEvent.model_validate(dict(row))


async def discard(pool: Pool, tenant: str, dead_id: str, *, by: str, reason: str, request_id: str) -> DeadEvent:
    """Give a message up."""
    return await _change(pool, tenant, dead_id, DeadEventStatus.DISCARDED, _Who(by, reason, request_id))


class _Who:
    def __init__(self, by: str, reason: str, request_id: str) -> None:
        self.by, self.reason, self.request_id = by, reason, request_id


_ACTIONS: Final = {
    DeadEventStatus.REPLAYING: Action.EVENT_REPLAY_REQUESTED,
    DeadEventStatus.DISCARDED: Action.EVENT_DISCARDED,
}


async def _change(pool: Pool, tenant: str, dead_id: str, status: DeadEventStatus, who: _Who) -> DeadEvent:
    async with transaction(pool, tenant) as connection:
        row = await _read(connection, dead_id, "FOR UPDATE")
        if row is None:
            raise InvalidInput(f"no dead event has the id {dead_id[:200]!r}")
        if DeadEventStatus(row["status"]).closed:
            raise InvalidInput(f"dead event {dead_id!r} is {row['status']} already: nothing was changed")
        changed = await connection.fetchrow(
            f"""
            UPDATE dead_events SET status = $2, version = version + 1, updated_at = now()
            WHERE id = $1 RETURNING {_COLUMNS}
            """,  # noqa: S608
            dead_id,
            status.value,
        )
        entry = Entry(
            action=_ACTIONS[status],
            letter=EventRef(tenant, dead_id),
            actor=who.by,
            reason=who.reason,
            request_id=who.request_id,
            before={"status": row["status"], "version": row["version"]},
            after={"status": status},
        )
        await write(connection, entry)
    return DeadEvent.model_validate(dict(changed or row))


async def _fail(pool: Pool, dead: DeadEvent, failure: Failure, request_id: str) -> DeadEvent:
    async with transaction(pool, dead.tenant) as connection:
        row = await connection.fetchrow(
            f"""
            UPDATE dead_events SET status = 'pending', category = $2, error_type = $3, error = $4,
                attempts = attempts + $5, last_attempt_at = now(), version = version + 1, updated_at = now()
            WHERE id = $1 AND status = 'replaying' RETURNING {_COLUMNS}
            """,  # noqa: S608
            dead.id,
            failure.category.value,
            clean(failure.error_type),
            clean(failure.error),
            failure.attempts,
        )
        if row is None:
            return dead
        await write(connection, _outcome_entry(dead, row, request_id))
    return DeadEvent.model_validate(dict(row))


def _outcome_entry(dead: DeadEvent, row: asyncpg.Record, request_id: str) -> Entry:
    return Entry(
        action=Action.EVENT_REPLAY_OUTCOME,
        letter=EventRef(dead.tenant, dead.id, row["run_id"]),
        request_id=request_id,
        before={"status": dead.status},
        after={"status": row["status"], "event_id": row["event_id"], "run_id": row["run_id"]},
    )


async def _read(connection: Connection, dead_id: str, lock: str = "") -> asyncpg.Record | None:
    return await connection.fetchrow(
        f"SELECT {_COLUMNS} FROM dead_events WHERE id = $1 {lock}",  # noqa: S608
        clean(dead_id),
    )


class DeadEventFilter(BaseModel):
    """Which dead events. `tenant` None means all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tenant: str | None = None
    status: DeadEventStatus | None = None
    source_stream: str | None = None


async def list_dead_events(
    pool: Pool, chosen: DeadEventFilter, limit: int = 50, cursor: str | None = None
) -> Page[DeadEvent]:
    """Return the dead events that failed last, after the cursor of the page before."""
    check_limit(limit)
    query, place = Query(), read_cursor(cursor, chosen)
    for column, value in chosen.model_dump().items():
        if value is not None:
            query.where(f"{column} = {{}}", clean(value))
    if place is not None:
        query.where("(last_attempt_at, id) < ({}, {})", place.at, place.id)
    async with reading(pool, chosen.tenant) as connection:
        records = await connection.fetch(
            f"""
            SELECT {_COLUMNS} FROM dead_events WHERE {query.sql}
            ORDER BY last_attempt_at DESC, id DESC LIMIT {query.add(limit + 1)}
            """,  # noqa: S608
            *query.parameters,
        )
    rows = [DeadEvent.model_validate(dict(record)) for record in records[:limit]]
    if len(records) <= limit:
        return Page(rows, None)
    return Page(rows, write_cursor(Place(rows[-1].last_attempt_at, rows[-1].id), chosen))
