"""Changes of dead letter records, each in one transaction with its line in the audit log.

Every write may be repeated, and an abandoned attempt may still arrive late: a write that was already made, or that is
about a command or a cycle that is over, changes nothing.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import asyncpg

from redrive.contracts import ALERT_WINDOW, FailedCycle, RunStatus
from redrive.dead_letters import (
    Ending,
    Exhausted,
    LetterId,
    LetterState,
    LetterStatus,
    Outcome,
    status_after_outcome,
)
from redrive.fingerprints import fingerprint
from redrive.idempotency.postgres_claims import run_claim
from redrive.postgres.tenancy import Pool, transaction
from redrive.postgres.text import clean, json_text
from redrive.store.audit.log import Action, Entry, write
from redrive.store.dead_letters.commands import first_answer, proof_of, put_accepted, put_malformed, put_refused
from redrive.store.dead_letters.locked_rows import before, changing, mark_orphaned, read, state

__all__ = [
    "Recorded",
    "first_answer",
    "load_state",
    "proof_of",
    "put_accepted",
    "put_malformed",
    "put_orphaned",
    "put_outcome",
    "put_refused",
    "record_exhausted",
    "reopen",
]


@dataclass(frozen=True)
class Recorded:
    """The record after a step was exhausted."""

    state: LetterState
    is_new: bool
    alert_count: int


async def record_exhausted(pool: Pool, message: Exhausted, quiet: timedelta = ALERT_WINDOW) -> Recorded:
    """Write a record, or append a cycle to it. The same cycle again changes nothing and has the same answer.

    `alert_count` is how many failures the alert of this cycle reports; 0 if another alert reports it, and -1 if it is
    the first that an alert must report later, `quiet` after the last one.
    """
    row = await pool.fetchrow("SELECT * FROM put_dead_letter($1, $2)", json_text(_exhausted(message)), quiet)
    if row is None:
        raise LookupError(f"dead letter {message.letter.workflow_id!r} was not written")
    return Recorded(state(message.letter, row), row["is_new"], row["alerts"])


def _exhausted(message: Exhausted) -> dict[str, Any]:
    letter, cycle = message.letter, message.cycle
    times = [attempt.at for attempt in cycle.attempts] or [message.at]
    entry = _history_entry(cycle) | {"first_failed_at": min(times), "last_failed_at": max(times)}
    return entry | {
        "id": letter.workflow_id,
        "tenant": letter.tenant,
        "run_id": letter.run_id,
        "step": letter.step,
        "module": letter.step,
        "pipeline": message.pipeline,
        "stack": cycle.stack,
        "payload": message.payload,
        "config": message.config.model_dump(mode="json"),
        "correlation_id": message.correlation_id,
        "idempotency_key": message.key,
        "fingerprint": fingerprint(message.pipeline, cycle),
        "entry": entry,
        "run": {
            "run_id": letter.run_id,
            "tenant": letter.tenant,
            "pipeline": message.pipeline,
            "status": RunStatus.DLQ_PENDING,
            "failed_step": letter.step,
            "failed_cycle": cycle.cycle,
            "category": cycle.category,
            "correlation_id": message.correlation_id,
            "idempotency_key": message.key,
            "started_at": message.started_at,
            "claim": run_claim(
                tenant=letter.tenant,
                key=message.key,
                run_id=letter.run_id,
                pipeline=message.pipeline,
                claim=message.claim,
            ),
        },
    }


def _history_entry(cycle: FailedCycle) -> dict[str, Any]:
    return cycle.model_dump(mode="json", include={"cycle", "attempts", "category", "error_type", "message", "build_id"})


async def load_state(pool: Pool, letter: LetterId) -> LetterState | None:
    """Return the record's state, for a workflow that was started by a command; None if there is no record."""
    async with transaction(pool, letter.tenant) as connection:
        record = await read(connection, letter)
    return state(letter, record) if record else None


_OUTCOME: Final = """
    WITH run AS (UPDATE runs SET status = $4, closed_at = CASE WHEN $4 = 'CANCELED' THEN now() END,
                     updated_at = now() WHERE run_id = $5 AND $4::text IS NOT NULL AND closed_at IS NULL)
    UPDATE dead_letters SET status = $2, blocked_by = $3, version = version + 1, updated_at = now(),
        resolution = CASE WHEN $2 = 'discarded' THEN 'run canceled' END
    WHERE id = $1 RETURNING pipeline, status, cycle, version, replay_count, command_request_id, blocked_by, orphaned
"""


async def put_outcome(pool: Pool, letter: LetterId, outcome: Outcome) -> LetterState | None:
    """Record how a replay ended, and return the record's new state. None if there is no record."""
    async with changing(pool, letter) as (connection, record):
        if record is None:
            return None
        status = status_after_outcome(outcome)
        if not _says_something_new(record, outcome, status):
            return state(letter, record)
        run_status = RunStatus.CANCELED if outcome.ending is Ending.CANCELED else outcome.run_status
        changed = await connection.fetchrow(
            _OUTCOME, letter.workflow_id, status.value, outcome.blocked_by, run_status, letter.run_id
        )
        entry = Entry(
            action=Action.REPLAY_OUTCOME,
            letter=letter,
            request_id=outcome.request_id,
            before=before(record),
            after={"status": status, "ending": outcome.ending, "blocked_by": outcome.blocked_by},
        )
        await write(connection, entry)
        return state(letter, changed or record)


def _says_something_new(record: asyncpg.Record, outcome: Outcome, status: LetterStatus) -> bool:
    if LetterStatus(record["status"]).closed:
        return False
    # Not for a canceled run: a command may have been on its way to it.
    is_late = outcome.request_id is not None and clean(outcome.request_id) != record["command_request_id"]
    if is_late and outcome.ending is not Ending.CANCELED:
        return False
    return (record["status"], record["blocked_by"]) != (status, outcome.blocked_by)


async def put_orphaned(pool: Pool, letter: LetterId) -> bool:
    """Record that the run of an open dead letter is gone, and return whether that is new."""
    async with changing(pool, letter) as (connection, record):
        if record is None or LetterStatus(record["status"]).closed or record["orphaned"]:
            return False
        await mark_orphaned(connection, letter)
        after = {"status": LetterStatus.PENDING, "orphaned": True}
        await write(connection, Entry(action=Action.ORPHANED, letter=letter, before=before(record), after=after))
        return True


_REOPEN: Final = """
    WITH run AS (UPDATE runs SET status = CASE WHEN $4 THEN 'FAILED' ELSE 'DLQ_PENDING' END, failed_step = $5,
                     closed_at = CASE WHEN $4 THEN now() END, updated_at = now() WHERE run_id = $3)
    UPDATE dead_letters SET status = 'pending', orphaned = $4, command_request_id = NULL, resolution = NULL,
        resolved_by = NULL, resolved_at = NULL, resolution_reason = NULL, version = version + 1, updated_at = now()
    WHERE id = $1 AND cycle = $2
"""


async def reopen(pool: Pool, letter: LetterId, cycle: int, *, orphaned: bool = False) -> bool:
    """Reopen a record whose last command never reached the run, and return whether that is new.

    `orphaned` says that the run is gone. Otherwise the run is still parked in this cycle.
    """
    async with changing(pool, letter) as (connection, record):
        if record is None or record["cycle"] != cycle or record["status"] == LetterStatus.PENDING:
            return False
        await connection.execute(_REOPEN, letter.workflow_id, cycle, letter.run_id, orphaned, letter.step)
        entry = Entry(
            action=Action.REOPENED,
            letter=letter,
            reason="the command did not reach the run",
            request_id=record["command_request_id"],
            before=before(record),
            after={"status": LetterStatus.PENDING, "orphaned": orphaned},
        )
        await write(connection, entry)
        return True
