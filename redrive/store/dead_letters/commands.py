"""Operators' commands: their answers, and the resulting record. Each command has exactly one answer.

A dead letter's row is locked, read and marked inside the caller's transaction.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple

import asyncpg

from redrive.dead_letters import (
    MAX_REPLAYS,
    Answer,
    CommandRequest,
    Discard,
    LetterCommand,
    LetterId,
    LetterState,
    LetterStatus,
    MalformedCommand,
    Replay,
    Resolve,
    Restart,
    closed_refusal,
    refusal,
    run_status_after,
    status_after,
)
from redrive.postgres.tenancy import Connection, Executor, Pool, transaction
from redrive.postgres.values import clean, clean_or_none, json_text
from redrive.store.audit import Action, Entry, write
from redrive.store.keys import follow_restart

REFUSALS_TOLD: Final = 50
_READ: Final = """
    SELECT status, cycle, version, revision, replay_count, command_request_id, blocked_by, orphaned
    FROM dead_letters WHERE id = $1
"""


async def first_answer(pool: Pool, letter: LetterId, request_id: str) -> Answer | None:
    """Return how a command with this id was answered before, from the audit log."""
    async with transaction(pool, letter.tenant) as connection:
        return await _first_answer(connection, letter, request_id)


_FIRST_ANSWER: Final = """
    SELECT after -> 'answer' FROM audit_log
    WHERE tenant = $1 AND dead_letter = $2 AND request_id = $3
        AND action IN ('replay_requested', 'resolved', 'discarded', 'restarted', 'refused')
"""


async def _first_answer(connection: Connection, letter: LetterId, request_id: str) -> Answer | None:
    text = await connection.fetchval(_FIRST_ANSWER, letter.tenant, letter.workflow_id, clean(request_id))
    return Answer.model_validate_json(text) if text else None


# The same again, in a workflow task that is done again: the run's next report follows this one.
NEWER: Final = "UPDATE dead_letters SET revision = $2 WHERE id = $1 AND revision < $2"


class RecordBehind(Exception):
    """The record does not say yet, or does not say any more, that the run is parked in this cycle."""


class Taken(NamedTuple):
    """The valid answer to a command, and whether the run is to carry it out now."""

    answer: Answer
    obey: bool


async def take_command(pool: Pool, request: CommandRequest, written: LetterCommand, answer: Answer) -> Taken:
    """Record a run's answer to a command; the same command again gets the first answer.

    A run that crashed before its history had the answer asks again: the command is still its record's last one.
    """
    if answer.accepted and await _accept(pool, request.letter, written, answer, of_run=request):
        return Taken(answer, obey=True)
    async with changing(pool, request.letter) as (connection, record):
        earlier = await _first_answer(connection, request.letter, written.request_id)
        if earlier:
            obey = earlier.accepted and _is_last(record, request)
            if obey:
                await connection.execute(NEWER, request.letter.workflow_id, request.revision)
            return Taken(earlier, obey)
        if answer.accepted:
            answer = answer.model_copy(update={"accepted": False, "message": _conflict(record, request, written)})
        answer = answer.model_copy(update=_said_by(record, request))
        await write(connection, _refused_entry(request.letter, written, record, answer))
        return Taken(answer, obey=False)


def _conflict(record: asyncpg.Record | None, request: CommandRequest, written: LetterCommand) -> str:
    """Say why the record did not take a command that the run would carry out."""
    if record is None or (record["cycle"], record["status"]) != (request.cycle, LetterStatus.PENDING):
        raise RecordBehind
    problem = refusal(state(request.letter, record), written)
    if problem is None:
        # It has changed since, and takes the command when the run asks again.
        raise RecordBehind
    return problem


def _said_by(record: asyncpg.Record | None, request: CommandRequest) -> dict[str, Any]:
    """Return what the record adds to a refusal: a run that is not parked at the step does not know why it is not."""
    status = LetterStatus(record["status"]) if record else None
    if request.cycle or (status and not status.closed):
        return {"status": status}
    return {"status": status, "message": closed_refusal(request.letter, status, request.command)}


def _is_last(record: asyncpg.Record | None, request: CommandRequest) -> bool:
    given = (request.cycle, clean(request.command.request_id), status_after(request.command))
    return record is not None and (record["cycle"], record["command_request_id"], record["status"]) == given


async def put_accepted(pool: Pool, letter: LetterId, command: LetterCommand, answer: Answer) -> Answer:
    """Record that a command was accepted whose run is gone.

    Return the valid answer: an earlier one, or a refusal after a change.
    """
    async with changing(pool, letter) as (connection, record):
        earlier = await _first_answer(connection, letter, command.request_id)
        if earlier:
            return earlier
        status = LetterStatus(record["status"]) if record else None
        if status is not LetterStatus.PENDING:
            answer = answer.model_copy(
                update={"accepted": False, "message": closed_refusal(letter, status, command), "status": status}
            )
            await write(connection, _refused_entry(letter, command, record, answer))
            return answer
        await _accept(connection, letter, command, answer)
        if isinstance(command, Restart):
            await follow_restart(connection, letter.tenant, letter.run_id)
        return answer


async def _accept(
    database: Executor,
    letter: LetterId,
    command: LetterCommand,
    answer: Answer,
    *,
    of_run: CommandRequest | None = None,
) -> bool:
    """Record that a command is accepted; False if it was answered before, or conflicts with the record.

    A run's command is about the cycle that the run is parked in. Without a run, the record alone decides.
    """
    given = {
        "tenant": letter.tenant,
        "dead_letter": letter.workflow_id,
        "run_id": letter.run_id,
        "step": letter.step,
        "action": _action(command),
        "actor": command.requested_by,
        "reason": command.reason,
        "request_id": command.request_id,
        "verb": command.verb,
        "mode": command.mode if isinstance(command, Replay) else None,
        "status": status_after(command),
        "run_status": run_status_after(command),
        "after": _after(command, answer),
        "cycle": of_run.cycle if of_run else None,
        "revision": of_run.revision if of_run else None,
        "even_if_blocked": of_run is None or isinstance(command, Discard),
        "max_replays": MAX_REPLAYS if of_run else None,
    }
    is_accepted: bool = await database.fetchval("SELECT accept_command($1)", json_text(given))
    return is_accepted


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
    """Record that a command was refused whose run is gone, and that it is. Return the valid answer."""
    async with changing(pool, letter) as (connection, record):
        earlier = await _first_answer(connection, letter, command.request_id)
        if earlier:
            return earlier
        status = LetterStatus(record["status"]) if record else None
        if status is None or status.closed:
            answer = answer.model_copy(update={"message": closed_refusal(letter, status, command), "status": status})
        elif orphaned:
            answer = answer.model_copy(update={"status": LetterStatus.PENDING, "orphaned": True})
            await mark_orphaned(connection, letter)
        await write(connection, _refused_entry(letter, command, record, answer))
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


def _refused_entry(letter: LetterId, command: LetterCommand, record: asyncpg.Record | None, answer: Answer) -> Entry:
    return Entry(
        action=Action.REFUSED,
        letter=letter,
        actor=command.requested_by,
        reason=command.reason,
        request_id=command.request_id,
        before=before(record),
        after=_after(command, answer),
    )


def _after(command: LetterCommand, answer: Answer) -> dict[str, Any]:
    """Return what the audit log keeps of a command and its answer."""
    # The content of an edit or an output may be secret; the audit needs only that there was one.
    shown = command.model_dump(mode="json", include={"mode", "from_step", "policy"}, exclude_none=True)
    edited = isinstance(command, Replay) and command.input_patch is not None
    return {"answer": answer.model_dump(mode="json"), "command": shown | {"verb": command.verb, "edited": edited}}


@contextlib.asynccontextmanager
async def changing(pool: Pool, letter: LetterId) -> AsyncIterator[tuple[Connection, asyncpg.Record | None]]:
    """Open a transaction that is the only one to change this dead letter, and yield its record."""
    async with transaction(pool, letter.tenant, alone_with=letter.workflow_id) as connection:
        yield connection, await read(connection, letter)


async def read(connection: Connection, letter: LetterId) -> asyncpg.Record | None:
    """Return the record's state."""
    return await connection.fetchrow(_READ, letter.workflow_id)


def before(record: asyncpg.Record | None) -> dict[str, Any] | None:
    """Return what the audit log keeps of a record before a change."""
    return {name: record[name] for name in ("status", "cycle", "version")} if record else None


def state(letter: LetterId, record: asyncpg.Record) -> LetterState:
    """Return what a record says."""
    return LetterState(
        letter=letter,
        status=LetterStatus(record["status"]),
        cycle=record["cycle"],
        replays=record["replay_count"],
        blocked_by=record["blocked_by"],
    )


async def mark_orphaned(connection: Connection, letter: LetterId) -> None:
    """Mark an open dead letter: its run is gone."""
    await connection.execute(
        """
        WITH run AS (UPDATE runs SET status = 'FAILED', closed_at = now(), updated_at = now()
                     WHERE run_id = $2 AND closed_at IS NULL)
        UPDATE dead_letters SET orphaned = true, status = 'pending', version = version + 1, updated_at = now()
        WHERE id = $1 AND NOT orphaned AND status IN ('pending', 'replaying')
        """,
        letter.workflow_id,
        letter.run_id,
    )
