"""Messages that could not become a run: recorded once each, listed, and operators' commands to them.

Each command is one transaction with its line in the audit log.
"""

import contextlib
from collections.abc import AsyncIterator
from datetime import datetime
from enum import StrEnum
from typing import Final

import asyncpg
from pydantic import BaseModel, ConfigDict, Field

from redrive.categories import Category
from redrive.dead_letters import Answer, Discard, Replay
from redrive.events import dead_event_id_for
from redrive.postgres.paging import Page, Query
from redrive.postgres.tenancy import QUARANTINE, Connection, Pool, reading, transaction
from redrive.postgres.values import Record, clean, json_text
from redrive.store.audit import Action, Entry, EventRef, write
from redrive.store.broker_records import Listing, Versions, answer_to, entry_of, first_answer

COLUMNS: Final = """
    id, tenant, source_stream, source_message_id, origin, event_type, dedupe_key, category, error_type, error, attempts,
    last_attempt_at, status, event_id, run_id, full_size, mirrored_at, version, created_at, updated_at
"""
_SET_STATUS: Final = f"""
    UPDATE dead_events SET status = $2, version = version + 1, updated_at = now() WHERE id = $1 RETURNING {COLUMNS}
"""  # noqa: S608
_REPLAYED: Final = f"""
    UPDATE dead_events SET status = 'replayed', event_id = $2, run_id = $3, version = version + 1, updated_at = now()
    WHERE id = $1 AND status <> 'replayed' RETURNING {COLUMNS}
"""  # noqa: S608
_FAILED: Final = f"""
    UPDATE dead_events SET status = 'pending', category = $2, error_type = $3, error = $4, attempts = attempts + $5,
        last_attempt_at = now(), version = version + 1, updated_at = now()
    WHERE id = $1 AND status = 'replaying' RETURNING {COLUMNS}
"""  # noqa: S608


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


_ACTIONS: Final = {
    DeadEventStatus.REPLAYING: Action.EVENT_REPLAY_REQUESTED,
    DeadEventStatus.DISCARDED: Action.EVENT_DISCARDED,
}


async def begin_replay(
    pool: Pool, dead: DeadEvent, command: Replay, versions: Versions = None, *, edited: bool = False
) -> tuple[DeadEvent, Answer | None]:
    """Take a dead event for a replay, or answer: it cannot be replayed, or this same command has replayed it.

    One that is being replayed can be taken again: its taker may have died. Of an edit the audit log has only that there
    was one: its content may be secret.
    """
    return await _change(pool, dead, command, DeadEventStatus.REPLAYING, versions, edited=edited)


async def discard(pool: Pool, dead: DeadEvent, command: Discard, versions: Versions = None) -> Answer:
    """Discard a message, or refuse that."""
    _, answer = await _change(pool, dead, command, DeadEventStatus.DISCARDED, versions)
    return answer or answer_to(command, DeadEventStatus.DISCARDED, "discarded")


async def end_replay(pool: Pool, dead: DeadEvent, outcome: Failure | tuple[str, str], command: Replay) -> Answer:
    """Record the outcome of a replay: the ids of the event and its run, or why there is none."""
    if isinstance(outcome, Failure):
        answer = answer_to(command, DeadEventStatus.PENDING, f"still pending: {outcome.error}", accepted=False)
        facts = (outcome.category.value, clean(outcome.error_type), clean(outcome.error), outcome.attempts)
        await _end(pool, dead, answer, _FAILED, facts)
    else:
        event_id, run_id = outcome
        answer = answer_to(command, DeadEventStatus.REPLAYED, f"event {event_id} has run {run_id}")
        await _end(pool, dead, answer, _REPLAYED, outcome)
    return answer


async def _change(
    pool: Pool,
    dead: DeadEvent,
    command: Replay | Discard,
    status: DeadEventStatus,
    versions: Versions,
    *,
    edited: bool = False,
) -> tuple[DeadEvent, Answer | None]:
    async with transaction(pool, dead.tenant) as connection:
        known = await _locked(connection, dead.id)
        earlier = await first_answer(connection, "dead event", known, command, versions)
        if earlier:
            return known, earlier
        before = {"status": known.status, "version": known.version}
        if known.status.closed:
            why = f"the dead event is {known.status}: there is nothing left to {command.verb}"
            answer = answer_to(command, known.status, why, accepted=False)
            await write(connection, entry_of(Action.REFUSED, known, command, answer, before, status=answer.status))
            return known, answer
        changed = await connection.fetchrow(_SET_STATUS, dead.id, status.value)
        answer = answer_to(command, status, status.value)
        facts: dict[str, object] = {"status": answer.status} | ({"edited": True} if edited else {})
        await write(connection, entry_of(_ACTIONS[status], known, command, answer, before, **facts))
    return _read(changed, dead.id), None


async def _end(pool: Pool, dead: DeadEvent, answer: Answer, change: str, facts: tuple[object, ...]) -> None:
    async with transaction(pool, dead.tenant) as connection:
        row = await connection.fetchrow(change, dead.id, *facts)
        # Whoever took it meanwhile has recorded the outcome.
        if row is None:
            return
        entry = Entry(
            action=Action.EVENT_REPLAY_OUTCOME,
            letter=EventRef(dead.tenant, dead.id, row["run_id"]),
            request_id=answer.request_id,
            before={"status": dead.status},
            after={"status": row["status"], "event_id": row["event_id"], "run_id": row["run_id"]}
            | {"answer": answer.model_dump(mode="json")},
        )
        await write(connection, entry)


async def _locked(connection: Connection, dead_id: str) -> DeadEvent:
    row = await connection.fetchrow(f"SELECT {COLUMNS} FROM dead_events WHERE id = $1 FOR UPDATE", dead_id)  # noqa: S608
    return _read(row, dead_id)


def _read(row: asyncpg.Record | None, dead_id: str) -> DeadEvent:
    if row is None:
        raise LookupError(f"dead event {dead_id!r} is not there any more")
    return DeadEvent.model_validate(dict(row))
