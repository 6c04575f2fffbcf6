"""Commands to messages that could not become a run, each in one transaction with its line in the audit log."""

from typing import Final

import asyncpg

from redrive.dead_letters import Answer, Discard, Replay
from redrive.postgres.tenancy import Connection, Pool, transaction
from redrive.postgres.text import clean
from redrive.store.audit.log import Action, Entry, EventRef, write
from redrive.store.broker_records import Versions, answer_to, entry_of, first_answer
from redrive.store.events.dead import COLUMNS, DeadEvent, DeadEventStatus, Failure

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
_ACTIONS: Final = {
    DeadEventStatus.REPLAYING: Action.EVENT_REPLAY_REQUESTED,
    DeadEventStatus.DISCARDED: Action.EVENT_DISCARDED,
}


async def begin_replay(
    pool: Pool, dead: DeadEvent, command: Replay, versions: Versions = None
) -> tuple[DeadEvent, Answer | None]:
    """Take a dead event for a replay, or answer: it cannot be replayed, or this same command has replayed it.

    One that is being replayed can be taken again: its taker may have died.
    """
    return await _change(pool, dead, command, DeadEventStatus.REPLAYING, versions)


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
    pool: Pool, dead: DeadEvent, command: Replay | Discard, status: DeadEventStatus, versions: Versions
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
        await write(connection, entry_of(_ACTIONS[status], known, command, answer, before, status=answer.status))
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
