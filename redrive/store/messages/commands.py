"""Commands to dead messages: carried out and audited in one transaction, and answered once."""

from typing import Final
from uuid import UUID

import asyncpg

from redrive.dead_letters import Answer, Discard, LetterStatus, Replay
from redrive.errors import VersionChanged
from redrive.postgres.tenancy import QUARANTINE, Pool, transaction
from redrive.postgres.text import clean, json_text
from redrive.store.audit.log import Action
from redrive.store.messages.dead import AUDIT, DeadMessage, MessageStatus, audit_id, find_dead, version_of
from redrive.store.quarantine import NEEDS_TENANT, assign_dead_message, check_assignment

_LOCK: Final = """
    SELECT tenant, status, cycle, full_size FROM dead_messages WHERE tenant = $1 AND message_id = $2 FOR UPDATE
"""
_ANSWERED: Final = """
    SELECT after -> 'answer' FROM audit_log WHERE tenant = $1 AND dead_letter = $2 AND request_id = $3
        AND action IN ('replay_requested', 'discarded', 'refused')
"""
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
    pool: Pool, tenant: str, message_id: UUID, command: Replay | Discard, versions: frozenset[str] | None = None
) -> Answer | None:
    """Carry out a command, or refuse it. The same request again gets the first answer. None: no such message.

    With `versions` it is valid only while the record has one of these.
    """
    name = audit_id(message_id)
    async with transaction(pool, tenant, alone_with=name) as connection:
        known = await connection.fetchrow(_LOCK, tenant, message_id)
        if known is None:
            return None
        earlier = await connection.fetchval(_ANSWERED, tenant, name, clean(command.request_id))
        if earlier:
            return Answer.model_validate_json(earlier)
        version = version_of(known["cycle"], known["status"])
        if versions is not None and version not in versions:
            raise VersionChanged("dead message", status=known["status"], version=version)
        answer, action = _judge(known, command)
        if answer.accepted:
            await connection.execute(
                _TO_REPLAYING if isinstance(command, Replay) else _TO_DISCARDED, tenant, message_id
            )
        await connection.execute(
            AUDIT,
            tenant,
            action.value,
            [name],
            clean(command.requested_by),
            clean(command.reason),
            clean(command.request_id),
            [json_text({"status": known["status"], "cycle": known["cycle"]})],
            [json_text({"answer": answer.model_dump(mode="json")})],
        )
    return answer


async def assigned(pool: Pool, message: DeadMessage, assign_to: str | None, command: Replay) -> str:
    """Return the tenant of a message that is to be replayed; one in quarantine is assigned to `assign_to`."""
    if not check_assignment(message.tenant, assign_to):
        return message.tenant
    tenant = assign_to or ""
    await assign_dead_message(pool, message.message_id, tenant, command)
    # One that was closed in quarantine stays there, and refuses the command by its status.
    return tenant if await find_dead(pool, tenant, message.message_id) else QUARANTINE


def _judge(known: asyncpg.Record, command: Replay | Discard) -> tuple[Answer, Action]:
    status = MessageStatus(known["status"])
    if status is not MessageStatus.PENDING:
        past = "replayed" if isinstance(command, Replay) else "discarded"
        why = f"the message is {status}: only one that is pending can be {past}"
        return _answer(command, LetterStatus(status), why, accepted=False), Action.REFUSED
    if isinstance(command, Replay) and known["full_size"] is not None:
        why = f"it had {known['full_size']} bytes, and only the beginning is kept: have it sent again, smaller"
        return _answer(command, LetterStatus(status), why, accepted=False), Action.REFUSED
    if isinstance(command, Replay) and known["tenant"] == QUARANTINE:
        return _answer(command, LetterStatus(status), NEEDS_TENANT, accepted=False), Action.REFUSED
    if isinstance(command, Replay):
        return _answer(command, LetterStatus.REPLAYING, "it is sent again now"), Action.REPLAY_REQUESTED
    return _answer(command, LetterStatus.DISCARDED, "discarded"), Action.DISCARDED


def _answer(command: Replay | Discard, status: LetterStatus, message: str, *, accepted: bool = True) -> Answer:
    return Answer(request_id=command.request_id, accepted=accepted, message=message, status=status)
