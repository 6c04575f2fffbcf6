"""Dead messages: recorded once each, listed, and operators' commands to them.

A command is carried out and audited in one transaction, and answered once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, computed_field

from redrive.dead_letters import Answer, Discard, Replay
from redrive.errors import InvalidInput, MessageNotFound
from redrive.postgres.paging import Page, Query, uuids_beginning
from redrive.postgres.tenancy import QUARANTINE, Connection, Pool, reading, transaction
from redrive.postgres.values import Record, clean, json_text
from redrive.prefixes import PREFIXES_COUNTED, only_one
from redrive.store.audit import SYSTEM, Action, write
from redrive.store.broker_records import (
    NEEDS_TENANT,
    Listing,
    Versions,
    answer_to,
    assign_dead_message,
    check_assignment,
    entry_of,
    first_answer,
)

PREFIX: Final = "message-"
_TO_REPLAYING: Final = """
    WITH dead AS (
        UPDATE dead_messages SET status = 'replaying', replay_count = replay_count + 1, updated_at = now()
        WHERE tenant = $1 AND message_id = $2 RETURNING *
    )
    INSERT INTO retry_queue (tenant, message_id, original_payload, original_queue, error_reason, retry_count,
                             max_retries, next_retry_at, status)
    -- A message whose sender allows no retry gets this one.
    SELECT tenant, message_id, original_payload, original_queue, error_reason, 0, greatest(max_retries, 1), now(),
           'replaying'
    FROM dead
    ON CONFLICT (tenant, message_id) DO UPDATE SET
        retry_count = 0, max_retries = excluded.max_retries, next_retry_at = now(), status = 'replaying'
"""
_TO_DISCARDED: Final = """
    UPDATE dead_messages SET status = 'discarded', updated_at = now() WHERE tenant = $1 AND message_id = $2
"""


class MessageKind(StrEnum):
    """Why a message is dead."""

    EXHAUSTED = "exhausted"
    MALFORMED = "malformed"


class MessageStatus(StrEnum):
    """A dead message's status."""

    PENDING = "pending"
    REPLAYING = "replaying"
    REPLAYED = "replayed"
    DISCARDED = "discarded"


@dataclass(frozen=True, kw_only=True)
class NewDeadMessage:
    """A message to record as dead."""

    message_id: UUID
    kind: MessageKind
    original_queue: str
    original_payload: bytes
    error_reason: str
    retry_count: int
    max_retries: int
    full_size: int | None = None
    """Bytes of a message of which only the beginning is kept."""


class DeadMessage(Record):
    """A dead message in a list, without its content, which may be large and secret."""

    tenant: str
    message_id: UUID
    kind: MessageKind
    status: MessageStatus
    source_queue: str
    original_queue: str
    payload_size: int
    full_size: int | None = Field(default=None, description="bytes of a message of which only the beginning is kept")
    error_reason: str
    retry_count: int
    max_retries: int
    cycle: int
    replay_count: int
    first_failed_at: datetime
    last_failed_at: datetime

    @computed_field  # type: ignore[prop-decorator]  # pydantic's own way
    @property
    def id(self) -> str:
        """The id by which commands and the audit log name it."""
        return audit_id(self.message_id)

    @computed_field  # type: ignore[prop-decorator]  # pydantic's own way
    @property
    def version(self) -> str:
        """Changes with the record: within a cycle the status only moves forward."""
        return f"{self.cycle}-{self.status}"


class MessageFilter(BaseModel):
    """Which dead messages a list has."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tenant: str | None = None
    status: MessageStatus | None = None
    queue: str | None = None


def audit_id(message_id: UUID) -> str:
    """Return a message's id in the audit log."""
    return f"{PREFIX}{message_id}"


def parse_id(text: str) -> UUID | None:
    """Read a message's id, with its prefix or without."""
    try:
        return UUID(text.removeprefix(PREFIX))
    except ValueError:
        return None


# A message that dies while its record is open, in a duplicate delivery, changes nothing.
_PUT: Final = """
    INSERT INTO dead_messages AS known (tenant, message_id, kind, source_queue, original_queue, original_payload,
                                        error_reason, retry_count, max_retries, full_size)
    SELECT $1, message_id, kind, $2, queue, payload, reason, retry_count, max_retries, full_size
    FROM unnest($3::uuid[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::integer[], $9::integer[],
                $10::bigint[])
        AS given (message_id, kind, queue, payload, reason, retry_count, max_retries, full_size)
    ON CONFLICT (tenant, message_id) DO UPDATE SET
        kind = excluded.kind, status = 'pending', original_queue = excluded.original_queue,
        original_payload = excluded.original_payload, error_reason = excluded.error_reason,
        retry_count = excluded.retry_count, max_retries = excluded.max_retries, cycle = known.cycle + 1,
        full_size = excluded.full_size,
        last_failed_at = now(), updated_at = now()
    WHERE known.status <> 'pending'
    RETURNING message_id, cycle
"""


_AUDIT: Final = """
    INSERT INTO audit_log (tenant, action, dead_letter, actor, reason, request_id, before, after)
    SELECT $1, $2, letter, $4, $5, $6, before, after
    FROM unnest($3::text[], $7::jsonb[], $8::jsonb[]) AS given (letter, before, after)
"""


async def put_dead(connection: Connection, tenant: str, source: str, messages: Sequence[NewDeadMessage]) -> None:
    """Record dead messages, each once."""
    rows = sorted({message.message_id: message for message in messages}.values(), key=lambda each: each.message_id)
    written = await connection.fetch(
        _PUT,
        tenant,
        source,
        [row.message_id for row in rows],
        [row.kind.value for row in rows],
        [row.original_queue for row in rows],
        [row.original_payload for row in rows],
        [row.error_reason for row in rows],
        [row.retry_count for row in rows],
        [row.max_retries for row in rows],
        [row.full_size for row in rows],
    )
    await connection.execute(
        _AUDIT,
        tenant,
        Action.DEAD_LETTERED.value,
        [audit_id(row["message_id"]) for row in written],
        SYSTEM,
        None,
        None,
        [None] * len(written),
        [json_text({"status": MessageStatus.PENDING, "cycle": row["cycle"]}) for row in written],
    )


_REPLAYED: Final = """
    UPDATE dead_messages SET status = 'replayed', updated_at = now()
    WHERE tenant = $1 AND message_id = ANY($2) AND status = 'replaying' RETURNING message_id
"""


async def mark_replayed(connection: Connection, tenant: str, message_ids: Sequence[UUID]) -> None:
    """Record that replayed messages were sent."""
    rows = await connection.fetch(_REPLAYED, tenant, message_ids)
    await connection.execute(
        _AUDIT,
        tenant,
        Action.REPLAY_OUTCOME.value,
        [audit_id(row["message_id"]) for row in rows],
        SYSTEM,
        None,
        None,
        [json_text({"status": MessageStatus.REPLAYING})] * len(rows),
        [json_text({"status": MessageStatus.REPLAYED})] * len(rows),
    )


COLUMNS: Final = """
    tenant, message_id, kind, status, source_queue, original_queue, octet_length(original_payload) AS payload_size,
    full_size, error_reason, retry_count, max_retries, cycle, replay_count, first_failed_at, last_failed_at
"""


def _key(text: str) -> UUID:
    known = parse_id(text)
    if known is None:
        raise InvalidInput("the cursor is not one that a list gave: start again without one")
    return known


_BETWEEN: Final = """
    SELECT DISTINCT message_id FROM dead_messages WHERE message_id BETWEEN $1 AND $2 ORDER BY message_id LIMIT $3
"""
_LISTING: Final = Listing(
    row=DeadMessage,
    table="dead_messages",
    columns=COLUMNS,
    at="last_failed_at",
    key="message_id",
    read_key=_key,
    in_order=True,
)


async def list_dead(pool: Pool, wanted: MessageFilter, limit: int, cursor: str | None = None) -> Page[DeadMessage]:
    """Return a page of dead messages, the newest failure first."""
    query = Query()
    for column, value in (("tenant", wanted.tenant), ("status", wanted.status), ("original_queue", wanted.queue)):
        if value is not None:
            query.where(f"{column} = {{}}", clean(value))
    return await _LISTING.page(pool, wanted, query, limit, cursor)


async def whole_id(pool: Pool, tenant: str | None, text: str) -> UUID | None:
    """Return the id that a text names: itself, or the only one that begins with it. None: it names none."""
    known = parse_id(text)
    between = uuids_beginning(text.removeprefix(PREFIX))
    if known or between is None:
        return known
    async with reading(pool, tenant) as connection:
        rows = await connection.fetch(_BETWEEN, *between, PREFIXES_COUNTED)
    found = [str(row["message_id"]) for row in rows]
    return UUID(only_one(text, found, "dead message", MessageNotFound)) if found else None


async def find_dead(pool: Pool, tenant: str | None, message_id: UUID) -> list[DeadMessage]:
    """Return the dead message with that id; without a tenant, of all tenants that have one."""
    async with reading(pool, tenant) as connection:
        records = await connection.fetch(
            f"SELECT {COLUMNS} FROM dead_messages WHERE message_id = $1 ORDER BY tenant",  # noqa: S608
            message_id,
        )
    return [DeadMessage.model_validate(dict(record)) for record in records]


async def read_payload(pool: Pool, message: DeadMessage, most: int | None = None) -> bytes:
    """Return the content of a dead message, or this many bytes of its beginning."""
    async with reading(pool, message.tenant) as connection:
        payload: bytes = await connection.fetchval(
            """
            SELECT substring(original_payload FOR coalesce($3, octet_length(original_payload)))
            FROM dead_messages WHERE tenant = $1 AND message_id = $2
            """,
            message.tenant,
            message.message_id,
            most,
        )
    return payload


_LOCK: Final = f"SELECT {COLUMNS} FROM dead_messages WHERE tenant = $1 AND message_id = $2 FOR UPDATE"  # noqa: S608


async def take_command(
    pool: Pool, tenant: str, message_id: UUID, command: Replay | Discard, versions: Versions = None
) -> Answer | None:
    """Carry out a command, or refuse it. The same request again gets the first answer. None: no such message.

    With `versions` it is valid only while the record has one of these.
    """
    async with transaction(pool, tenant, alone_with=audit_id(message_id)) as connection:
        row = await connection.fetchrow(_LOCK, tenant, message_id)
        if row is None:
            return None
        known = DeadMessage.model_validate(dict(row))
        earlier = await first_answer(connection, "dead message", known, command, versions)
        if earlier:
            return earlier
        answer, action = _judge(known, command)
        if answer.accepted:
            change = _TO_REPLAYING if isinstance(command, Replay) else _TO_DISCARDED
            await connection.execute(change, tenant, message_id)
        before = {"status": known.status, "cycle": known.cycle}
        await write(connection, entry_of(action, known, command, answer, before))
    return answer


async def give(
    pool: Pool,
    message: DeadMessage,
    command: Replay | Discard,
    versions: Versions = None,
    assign_to: str | None = None,
) -> Answer:
    """Carry out a command to a message that was looked at, or refuse it; see `assigned` and `take_command`."""
    tenant = await assigned(pool, message, assign_to, command) if isinstance(command, Replay) else message.tenant
    answer = await take_command(pool, tenant, message.message_id, command, versions)
    if answer is None:
        raise MessageNotFound(f"no dead message has the id {message.id!r} any more")
    return answer


async def assigned(pool: Pool, message: DeadMessage, assign_to: str | None, command: Replay) -> str:
    """Return the tenant of a message that is to be replayed; one in quarantine is assigned to `assign_to`."""
    if not check_assignment(message.tenant, assign_to):
        return message.tenant
    tenant = assign_to or ""
    await assign_dead_message(pool, message.message_id, tenant, command)
    # One that was closed in quarantine stays there, and refuses the command by its status.
    return tenant if await find_dead(pool, tenant, message.message_id) else QUARANTINE


def _judge(known: DeadMessage, command: Replay | Discard) -> tuple[Answer, Action]:
    why = _refusal(known, command)
    if why is not None:
        return answer_to(command, known.status, why, accepted=False), Action.REFUSED
    if isinstance(command, Replay):
        return answer_to(command, MessageStatus.REPLAYING, "it is sent again now"), Action.REPLAY_REQUESTED
    return answer_to(command, MessageStatus.DISCARDED, "discarded"), Action.DISCARDED


def _refusal(known: DeadMessage, command: Replay | Discard) -> str | None:
    if known.status is not MessageStatus.PENDING:
        past = "replayed" if isinstance(command, Replay) else "discarded"
        return f"the message is {known.status}: only one that is pending can be {past}"
    if isinstance(command, Replay) and known.full_size is not None:
        return f"it had {known.full_size} bytes, and only the beginning is kept: have it sent again, smaller"
    if isinstance(command, Replay) and known.tenant == QUARANTINE:
        return NEEDS_TENANT
    return None
