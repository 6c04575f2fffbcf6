"""Commands to dead messages: carried out and audited in one transaction, and answered once."""

from typing import Final
from uuid import UUID

from redrive.dead_letters import Answer, Discard, Replay
from redrive.errors import MessageNotFound
from redrive.postgres.tenancy import QUARANTINE, Pool, transaction
from redrive.store.audit.log import Action, write
from redrive.store.broker_records import Versions, answer_to, entry_of, first_answer
from redrive.store.messages.dead import COLUMNS, DeadMessage, MessageStatus, audit_id, find_dead
from redrive.store.quarantine import NEEDS_TENANT, assign_dead_message, check_assignment

_LOCK: Final = f"SELECT {COLUMNS} FROM dead_messages WHERE tenant = $1 AND message_id = $2 FOR UPDATE"  # noqa: S608
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
