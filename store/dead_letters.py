"""Dead letter records: every change of one, each in one transaction with its line in the audit log."""

from typing import Any, Final

from pydantic_core import to_json

from redrive.contracts import FailedCycle, RunStatus
from redrive.dead_letters import (
    Answer,
    Discard,
    Ending,
    Exhausted,
    LetterId,
    LetterState,
    LetterStatus,
    MalformedOrder,
    Outcome,
    Replay,
    Resolve,
    status_after,
    status_after_outcome,
)
from redrive.fingerprints import fingerprint
from store.audit import Action, Entry, write
from store.tenancy import Connection, Pool, transaction

_PUT: Final = """
    INSERT INTO dead_letters AS letter (
        id, tenant, run_id, step, module, pipeline, status, category, error_type, message, stack, attempts, cycle,
        first_failed_at, last_failed_at, failure_history, payload, config, correlation_id, idempotency_key, generation,
        fingerprint)
    VALUES ($1, $2, $3, $4, $4, $5, 'pending', $6, $7, $8, $9, $10, $11, $12, $13, jsonb_build_array($14::jsonb), $15,
            $16, $17, $18, $19, $20)
    ON CONFLICT (id) DO UPDATE SET
        status = 'pending', category = excluded.category, error_type = excluded.error_type,
        message = excluded.message, stack = excluded.stack, attempts = excluded.attempts, cycle = excluded.cycle,
        first_failed_at = excluded.first_failed_at, last_failed_at = excluded.last_failed_at,
        failure_history = letter.failure_history
            || (excluded.failure_history -> 0
                || jsonb_build_object('replayed_by', letter.replayed_by, 'mode', letter.replay_mode)),
        payload = excluded.payload, config = excluded.config, generation = excluded.generation,
        fingerprint = excluded.fingerprint, blocked_by = NULL, orphaned = false,
        version = letter.version + 1, updated_at = now()
    WHERE letter.cycle < excluded.cycle
    RETURNING 1
"""


async def put_exhausted(pool: Pool, message: Exhausted) -> tuple[LetterState, bool]:
    """Write a record, or append a cycle to it, and tell whether it is new. The same cycle again changes nothing."""
    letter = message.letter
    async with transaction(pool, letter.tenant) as connection:
        written = await connection.fetchval(_PUT, *_columns(message))
        if written:
            await _put_run(connection, message)
            after = {"status": LetterStatus.PENDING, "cycle": message.cycle.cycle, "category": message.cycle.category}
            await write(connection, Entry(action=Action.DEAD_LETTERED, letter=letter, after=after))
        return await _state(connection, letter), bool(written)


def _columns(message: Exhausted) -> tuple[Any, ...]:
    letter, cycle = message.letter, message.cycle
    times = [attempt.at for attempt in cycle.attempts] or [message.at]
    return (
        letter.workflow_id,
        letter.tenant,
        letter.run_id,
        letter.step,
        message.pipeline,
        cycle.category.value,
        cycle.error_type,
        cycle.message,
        cycle.stack,
        to_json(cycle.attempts).decode(),
        cycle.cycle,
        min(times),
        max(times),
        _history_entry(cycle, min(times).isoformat(), max(times).isoformat()),
        to_json(message.payload).decode(),
        message.config.model_dump_json(),
        message.correlation_id,
        message.key,
        cycle.generation,
        fingerprint(message.pipeline, cycle),
    )


def _history_entry(cycle: FailedCycle, first: str, last: str) -> str:
    fields = cycle.model_dump(
        mode="json", include={"cycle", "attempts", "category", "error_type", "message", "generation"}
    )
    return to_json(fields | {"first_failed_at": first, "last_failed_at": last}).decode()


async def _put_run(connection: Connection, message: Exhausted) -> None:
    await connection.execute(
        """
        INSERT INTO runs (run_id, tenant, pipeline, status, failed_step, category, correlation_id, idempotency_key,
                          started_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
        ON CONFLICT (run_id) DO UPDATE SET status = excluded.status, failed_step = excluded.failed_step,
            category = excluded.category, updated_at = now()
        """,
        message.letter.run_id,
        message.letter.tenant,
        message.pipeline,
        RunStatus.DLQ_PENDING.value,
        message.letter.step,
        message.cycle.category.value,
        message.correlation_id,
        message.key,
        message.at,
    )


async def load_state(pool: Pool, letter: LetterId) -> LetterState | None:
    """Return what the record says, for a workflow that was started by an order; None when there is no record."""
    async with transaction(pool, letter.tenant) as connection:
        known = await connection.fetchval("SELECT true FROM dead_letters WHERE id = $1", letter.workflow_id)
        return await _state(connection, letter) if known else None


async def _state(connection: Connection, letter: LetterId) -> LetterState:
    row = await connection.fetchrow(
        "SELECT pipeline, status, replay_count, cycle, blocked_by, orphaned FROM dead_letters WHERE id = $1",
        letter.workflow_id,
    )
    if row is None:
        raise LookupError(f"dead letter {letter.workflow_id!r} is not in the database")
    return LetterState(
        letter=letter,
        pipeline=row["pipeline"],
        status=LetterStatus(row["status"]),
        replays=row["replay_count"],
        cycles=row["cycle"],
        blocked_by=row["blocked_by"],
        orphaned=row["orphaned"],
    )


async def first_answer(pool: Pool, letter: LetterId, request_id: str) -> Answer | None:
    """Return how an order with this id was answered before, from the audit log."""
    async with transaction(pool, letter.tenant) as connection:
        text = await connection.fetchval(
            """
            SELECT after -> 'answer' FROM audit_log
            WHERE tenant = $1 AND dead_letter = $2 AND request_id = $3 AND after ? 'answer' ORDER BY number LIMIT 1
            """,
            letter.tenant,
            letter.workflow_id,
            request_id,
        )
    return Answer.model_validate_json(text) if text else None


_ACTIONS: Final = {
    LetterStatus.REPLAYING: Action.REPLAY_REQUESTED,
    LetterStatus.RESOLVED: Action.RESOLVED,
    LetterStatus.DISCARDED: Action.DISCARDED,
}


async def put_accepted(pool: Pool, letter: LetterId, order: Replay | Resolve | Discard, answer: Answer) -> None:
    """Record that an order was accepted."""
    status = status_after(order)
    async with transaction(pool, letter.tenant) as connection:
        before = await _lock(connection, letter)
        if isinstance(order, Replay):
            await connection.execute(
                """
                UPDATE dead_letters SET status = $2, replay_count = replay_count + 1, replayed_by = $3,
                    replayed_at = now(), replay_mode = $4, replay_reason = $5, orphaned = false,
                    version = version + 1, updated_at = now()
                WHERE id = $1 AND status = 'pending'
                """,
                letter.workflow_id,
                status.value,
                order.requested_by,
                order.mode.value,
                order.reason,
            )
        else:
            await connection.execute(
                """
                UPDATE dead_letters SET status = $2, resolution = $3, resolved_by = $4, resolved_at = now(),
                    resolution_reason = $5, version = version + 1, updated_at = now()
                WHERE id = $1 AND status = 'pending'
                """,
                letter.workflow_id,
                status.value,
                order.verb.value,
                order.requested_by,
                order.reason,
            )
        await write(connection, _order_entry(_ACTIONS[status], letter, order, before, answer))


async def put_refused(
    pool: Pool, letter: LetterId, order: Replay | Resolve | Discard, answer: Answer, *, orphaned: bool = False
) -> None:
    """Record that an order was refused, and that the run is gone if that is why."""
    async with transaction(pool, letter.tenant) as connection:
        before = await _lock(connection, letter)
        if orphaned:
            await connection.execute(
                "UPDATE dead_letters SET orphaned = true, version = version + 1, updated_at = now() "
                "WHERE id = $1 AND NOT orphaned",
                letter.workflow_id,
            )
        await write(connection, _order_entry(Action.REFUSED, letter, order, before, answer))


async def put_malformed(pool: Pool, letter: LetterId, malformed: MalformedOrder) -> None:
    """Record an order that could not be read: nobody knows who sent it."""
    async with transaction(pool, letter.tenant) as connection:
        before = await _lock(connection, letter)
        after = {"verb": malformed.verb, "problem": malformed.problem}
        await write(
            connection, Entry(action=Action.REFUSED, letter=letter, actor="unknown", before=before, after=after)
        )


def _order_entry(
    action: Action, letter: LetterId, order: Replay | Resolve | Discard, before: dict[str, Any] | None, answer: Answer
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
        before=before,
        after=after,
    )


async def put_outcome(pool: Pool, letter: LetterId, outcome: Outcome) -> None:
    """Record how a replay ended."""
    status = status_after_outcome(outcome)
    async with transaction(pool, letter.tenant) as connection:
        before = await _lock(connection, letter)
        await connection.execute(
            """
            UPDATE dead_letters SET status = $2, blocked_by = $3, version = version + 1, updated_at = now(),
                orphaned = orphaned OR $4, resolution = CASE WHEN $2 = 'discarded' THEN 'run canceled' ELSE resolution END
            WHERE id = $1 AND status IN ('pending', 'replaying')
            """,
            letter.workflow_id,
            status.value,
            outcome.blocked_by,
            outcome.ending is Ending.ORPHANED,
        )
        after = {"status": status, "ending": outcome.ending, "blocked_by": outcome.blocked_by}
        await write(
            connection,
            Entry(
                action=Action.REPLAY_OUTCOME,
                letter=letter,
                request_id=outcome.request_id,
                before=before,
                after=after,
            ),
        )


async def _lock(connection: Connection, letter: LetterId) -> dict[str, Any] | None:
    """Hold the record until the transaction ends, and return what it was before."""
    row = await connection.fetchrow(
        "SELECT status, cycle, version FROM dead_letters WHERE id = $1 FOR UPDATE", letter.workflow_id
    )
    return dict(row) if row else None
