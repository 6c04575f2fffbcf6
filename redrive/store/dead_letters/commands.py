"""Operators' commands: their answers, and the resulting record. Each command has exactly one answer."""

from typing import Final

import asyncpg

from redrive.contracts import RunStatus
from redrive.dead_letters import (
    Answer,
    Discard,
    LetterCommand,
    LetterId,
    LetterStatus,
    MalformedCommand,
    Replay,
    Resolve,
    Restart,
    run_status_after,
    status_after,
)
from redrive.postgres.tenancy import Connection, Pool, transaction
from redrive.postgres.text import clean, clean_or_none
from redrive.store.audit.log import Action, Entry, write
from redrive.store.dead_letters.locked_rows import before, changing, mark_orphaned
from redrive.store.keys.generations import follow_restart

REFUSALS_TOLD: Final = 50


async def first_answer(pool: Pool, letter: LetterId, request_id: str) -> Answer | None:
    """Return how a command with this id was answered before, from the audit log."""
    async with transaction(pool, letter.tenant) as connection:
        return await _first_answer(connection, letter, request_id)


async def proof_of(pool: Pool, letter: LetterId, request_id: str) -> str | None:
    """Return the proof of an accepted command, while it is the dead letter's last one and its outcome is not known.

    A repeated command gets its first answer, even if it was carried out long ago: check this before it is signalled to
    the run. The run checks it before it obeys. The proof is empty if an older release accepted the command.
    """
    async with transaction(pool, letter.tenant) as connection:
        proof: str | None = await connection.fetchval(
            """
            SELECT coalesce(command_nonce::text, '') FROM dead_letters
            WHERE id = $1 AND command_request_id = $2 AND status <> 'replayed'
            """,
            letter.workflow_id,
            clean(request_id),
        )
    return proof


_FIRST_ANSWER: Final = """
    SELECT after -> 'answer' FROM audit_log
    WHERE tenant = $1 AND dead_letter = $2 AND request_id = $3
        AND action IN ('replay_requested', 'resolved', 'discarded', 'restarted', 'refused')
"""


async def _first_answer(connection: Connection, letter: LetterId, request_id: str) -> Answer | None:
    text = await connection.fetchval(_FIRST_ANSWER, letter.tenant, letter.workflow_id, clean(request_id))
    return Answer.model_validate_json(text) if text else None


_REPLAY: Final = """
    WITH run AS (UPDATE runs SET status = 'RUNNING', closed_at = NULL, updated_at = now() WHERE run_id = $6)
    UPDATE dead_letters SET status = 'replaying', replay_count = replay_count + 1, command_request_id = $2,
        replayed_by = $3, replayed_at = now(), replay_mode = $4, replay_reason = $5, orphaned = false,
        command_nonce = gen_random_uuid(), version = version + 1, updated_at = now()
    WHERE id = $1
"""
_CLOSE: Final = """
    WITH run AS (UPDATE runs SET status = $7, closed_at = CASE WHEN $7 <> 'RUNNING' THEN now() END, updated_at = now(),
                     failed_step = CASE WHEN $7 <> 'SUCCESS' THEN failed_step END,
                     category = CASE WHEN $7 <> 'SUCCESS' THEN category END
                 WHERE run_id = $6)
    UPDATE dead_letters SET status = $2, resolution = $3, resolved_by = $4, resolved_at = now(),
        resolution_reason = $5, command_request_id = $8, command_nonce = gen_random_uuid(),
        version = version + 1, updated_at = now()
    WHERE id = $1
"""


async def put_accepted(pool: Pool, letter: LetterId, command: LetterCommand, answer: Answer) -> Answer:
    """Record that a command was accepted, for a step that is its run's last one or not.

    Return the valid answer: an earlier one, or a refusal after a change.
    """
    async with changing(pool, letter) as (connection, record):
        earlier = await _first_answer(connection, letter, command.request_id)
        if earlier:
            return earlier
        status = LetterStatus(record["status"]) if record else None
        if status is not LetterStatus.PENDING:
            problem = f"the dead letter is {status}" if status else "there is no such dead letter"
            answer = answer.model_copy(update={"accepted": False, "message": problem, "status": status})
            await write(connection, _command_entry(Action.REFUSED, letter, command, record, answer))
            return answer
        await _accept(connection, letter, command, run_status_after(command))
        await write(connection, _command_entry(_action(command), letter, command, record, answer))
        return answer


async def _accept(connection: Connection, letter: LetterId, command: LetterCommand, run_status: RunStatus) -> None:
    who, why, request_id = clean(command.requested_by), clean(command.reason), clean(command.request_id)
    if isinstance(command, Replay):
        await connection.execute(_REPLAY, letter.workflow_id, request_id, who, command.mode.value, why, letter.run_id)
        return
    status, verb = status_after(command).value, command.verb.value
    await connection.execute(
        _CLOSE, letter.workflow_id, status, verb, who, why, letter.run_id, run_status.value, request_id
    )
    if isinstance(command, Restart):
        await follow_restart(connection, letter.tenant, letter.run_id)


def _action(command: LetterCommand) -> Action:
    match command:
        case Replay():
            return Action.REPLAY_REQUESTED
        case Resolve():
            return Action.RESOLVED
        case Discard():
            return Action.DISCARDED
        case Restart():
            return Action.RESTARTED


async def put_refused(
    pool: Pool, letter: LetterId, command: LetterCommand, answer: Answer, *, orphaned: bool = False
) -> Answer:
    """Record that a command was refused, and that the run is gone if that is why. Return the valid answer."""
    async with changing(pool, letter) as (connection, record):
        earlier = await _first_answer(connection, letter, command.request_id)
        if earlier:
            return earlier
        if orphaned:
            await mark_orphaned(connection, letter)
        await write(connection, _command_entry(Action.REFUSED, letter, command, record, answer))
        return answer


# A repeated attempt of the activity that counted last counts nothing.
_COUNT_REFUSED: Final = """
    INSERT INTO refused_messages AS known (tenant, dead_letter, count, last_request) VALUES ($1, $2, 1, $3)
    ON CONFLICT (tenant, dead_letter) DO UPDATE SET
        count = known.count + 1, last_request = excluded.last_request, last_at = now()
    WHERE excluded.last_request IS NULL OR known.last_request IS DISTINCT FROM excluded.last_request
    RETURNING count, told
"""


async def put_malformed(
    pool: Pool, letter: LetterId, malformed: MalformedCommand, request_id: str | None = None
) -> None:
    """Record a command that could not be read, or had no proof: nobody knows who sent it.

    With a caller's id it is recorded once. A dead letter's first ones have a line each in the audit log, later ones
    share one, which says how many there are.
    """
    once = clean_or_none(request_id)
    async with changing(pool, letter) as (connection, record):
        if once and await connection.fetchval(
            "SELECT true FROM audit_log WHERE tenant = $1 AND dead_letter = $2 AND request_id = $3",
            letter.tenant,
            letter.workflow_id,
            once,
        ):
            return
        counted = await connection.fetchrow(_COUNT_REFUSED, letter.tenant, letter.workflow_id, once)
        if counted is None or not has_own_line(counted["count"]):
            return
        after = {"verb": malformed.verb, "problem": malformed.problem, "count": counted["count"] - counted["told"]}
        entry = Entry(
            action=Action.REFUSED,
            letter=letter,
            actor="unknown",
            request_id=request_id,
            before=before(record),
            after=after,
        )
        await write(connection, entry)
        await connection.execute(
            "UPDATE refused_messages SET told = count WHERE tenant = $1 AND dead_letter = $2",
            letter.tenant,
            letter.workflow_id,
        )


def has_own_line(number: int) -> bool:
    """Tell whether the audit log gets a line for the refused message with this number, and those before it.

    However many are sent, there are few lines: one for each of the first, then one whenever their number has doubled.
    """
    return number <= REFUSALS_TOLD or number.bit_count() == 1


def _command_entry(
    action: Action, letter: LetterId, command: LetterCommand, record: asyncpg.Record | None, answer: Answer
) -> Entry:
    # The content of an edit or an output may be secret; the audit needs only that there was one.
    shown = command.model_dump(mode="json", include={"mode", "from_step", "policy"}, exclude_none=True)
    edited = isinstance(command, Replay) and command.input_patch is not None
    after = {"answer": answer.model_dump(mode="json"), "command": shown | {"verb": command.verb, "edited": edited}}
    return Entry(
        action=action,
        letter=letter,
        actor=command.requested_by,
        reason=command.reason,
        request_id=command.request_id,
        before=before(record),
        after=after,
    )
