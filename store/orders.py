"""Operators' orders: what was answered to them, and what the record became. One answer for each order, for ever."""

from typing import Final

import asyncpg

from redrive.contracts import RunStatus
from redrive.dead_letters import (
    Answer,
    Discard,
    LetterId,
    LetterOrder,
    LetterStatus,
    MalformedOrder,
    Replay,
    Resolve,
    Restart,
    status_after,
)
from store.audit import Action, Entry, write
from store.key_generations import follow_restart
from store.letter_rows import before, changing, mark_orphaned
from store.tenancy import Connection, Pool, transaction
from store.text import clean


async def first_answer(pool: Pool, letter: LetterId, request_id: str) -> Answer | None:
    """Return how an order with this id was answered before, from the audit log."""
    async with transaction(pool, letter.tenant) as connection:
        return await _first_answer(connection, letter, request_id)


async def is_under_way(pool: Pool, letter: LetterId, request_id: str) -> bool:
    """Tell whether an order that was accepted is still the letter's last one, and its outcome is not known yet.

    An order that is given again gets its first answer, also when it was carried out long ago: ask this before it is
    handed to the run.
    """
    async with transaction(pool, letter.tenant) as connection:
        status = await connection.fetchval(
            "SELECT status FROM dead_letters WHERE id = $1 AND order_request_id = $2",
            letter.workflow_id,
            clean(request_id),
        )
    return status is not None and status != LetterStatus.REPLAYED


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
    UPDATE dead_letters SET status = 'replaying', replay_count = replay_count + 1, order_request_id = $2,
        replayed_by = $3, replayed_at = now(), replay_mode = $4, replay_reason = $5, orphaned = false,
        version = version + 1, updated_at = now()
    WHERE id = $1
"""
_CLOSE: Final = """
    WITH run AS (UPDATE runs SET status = $7, closed_at = CASE WHEN $7 = 'FAILED' THEN now() END, updated_at = now()
                 WHERE run_id = $6)
    UPDATE dead_letters SET status = $2, resolution = $3, resolved_by = $4, resolved_at = now(),
        resolution_reason = $5, order_request_id = $8, version = version + 1, updated_at = now()
    WHERE id = $1
"""


async def put_accepted(pool: Pool, letter: LetterId, order: LetterOrder, answer: Answer) -> Answer:
    """Record that an order was accepted. Return the answer that stands: an earlier one, or a refusal after a change."""
    async with changing(pool, letter) as (connection, record):
        earlier = await _first_answer(connection, letter, order.request_id)
        if earlier:
            return earlier
        status = LetterStatus(record["status"]) if record else None
        if status is not LetterStatus.PENDING:
            problem = f"the dead letter is {status}" if status else "there is no such dead letter"
            answer = answer.model_copy(update={"accepted": False, "message": problem, "status": status})
            await write(connection, _order_entry(Action.REFUSED, letter, order, record, answer))
            return answer
        await _accept(connection, letter, order)
        await write(connection, _order_entry(_action(order), letter, order, record, answer))
        return answer


async def _accept(connection: Connection, letter: LetterId, order: LetterOrder) -> None:
    who, why, request_id = clean(order.requested_by), clean(order.reason), clean(order.request_id)
    if isinstance(order, Replay):
        await connection.execute(_REPLAY, letter.workflow_id, request_id, who, order.mode.value, why, letter.run_id)
        return
    status, verb = status_after(order).value, order.verb.value
    # A restarted run is another run: this one ends.
    run = (RunStatus.RUNNING if isinstance(order, Resolve) else RunStatus.FAILED).value
    await connection.execute(_CLOSE, letter.workflow_id, status, verb, who, why, letter.run_id, run, request_id)
    if isinstance(order, Restart):
        await follow_restart(connection, letter.tenant, letter.run_id)


def _action(order: LetterOrder) -> Action:
    match order:
        case Replay():
            return Action.REPLAY_REQUESTED
        case Resolve():
            return Action.RESOLVED
        case Discard():
            return Action.DISCARDED
        case Restart():
            return Action.RESTARTED


async def put_refused(
    pool: Pool, letter: LetterId, order: LetterOrder, answer: Answer, *, orphaned: bool = False
) -> Answer:
    """Record that an order was refused, and that the run is gone if that is why. Return the answer that stands."""
    async with changing(pool, letter) as (connection, record):
        earlier = await _first_answer(connection, letter, order.request_id)
        if earlier:
            return earlier
        if orphaned:
            await mark_orphaned(connection, letter)
        await write(connection, _order_entry(Action.REFUSED, letter, order, record, answer))
        return answer


async def put_malformed(pool: Pool, letter: LetterId, malformed: MalformedOrder, request_id: str | None = None) -> None:
    """Record an order that could not be read: nobody knows who sent it. With an id of the caller's: once for it."""
    async with changing(pool, letter) as (connection, record):
        after = {"verb": malformed.verb, "problem": malformed.problem}
        entry = Entry(
            action=Action.REFUSED,
            letter=letter,
            actor="unknown",
            request_id=request_id,
            before=before(record),
            after=after,
        )
        known = request_id and await connection.fetchval(
            "SELECT true FROM audit_log WHERE tenant = $1 AND dead_letter = $2 AND request_id = $3",
            letter.tenant,
            letter.workflow_id,
            clean(request_id),
        )
        if not known:
            await write(connection, entry)


def _order_entry(
    action: Action, letter: LetterId, order: LetterOrder, record: asyncpg.Record | None, answer: Answer
) -> Entry:
    # What an edit or an output contains may be secret; that there was one is what the audit needs.
    shown = order.model_dump(mode="json", include={"mode", "from_step", "policy"}, exclude_none=True)
    edited = isinstance(order, Replay) and order.input_patch is not None
    after = {"answer": answer.model_dump(mode="json"), "order": shown | {"verb": order.verb, "edited": edited}}
    return Entry(
        action=action,
        letter=letter,
        actor=order.requested_by,
        reason=order.reason,
        request_id=order.request_id,
        before=before(record),
        after=after,
    )
