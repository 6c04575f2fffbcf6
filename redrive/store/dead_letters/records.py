"""Changes of dead letter records, each in one transaction with its line in the audit log.

Every write may be repeated, and an abandoned attempt may still arrive late: a write that was already made, or that is
about a command or a cycle that is over, changes nothing.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from redrive.classify import fingerprint
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
from redrive.idempotency.postgres_claims import run_claim
from redrive.postgres.tenancy import Pool, reading, transaction
from redrive.postgres.values import json_text
from redrive.store.audit import Action, Entry, write
from redrive.store.dead_letters.commands import (
    RecordBehind,
    Taken,
    before,
    changing,
    mark_orphaned,
    put_accepted,
    put_malformed,
    put_refused,
    read,
    state,
    take_command,
)
from redrive.store.runs import FinishedRun

__all__ = [
    "RecordBehind",
    "Recorded",
    "Taken",
    "load_state",
    "put_accepted",
    "put_malformed",
    "put_orphaned",
    "put_outcome",
    "put_refused",
    "record_exhausted",
    "take_command",
]


@dataclass(frozen=True)
class Recorded:
    """The record after a step was exhausted."""

    state: LetterState
    is_new: bool
    alert_count: int


# One statement, one transaction: nobody sees the dead letter without its labels.
_PUT_LABELLED: Final = """
    WITH put AS MATERIALIZED (SELECT * FROM put_dead_letter($1, $2)) SELECT put.*, put_labels($3, $4, $5) FROM put
"""


async def record_exhausted(pool: Pool, message: Exhausted, quiet: timedelta = ALERT_WINDOW) -> Recorded:
    """Write a record, or append a cycle to it. The same cycle again changes nothing and has the same answer.

    `alert_count` is how many failures the alert of this cycle reports; 0 if another alert reports it, and -1 if it is
    the first that an alert must report later, `quiet` after the last one.
    """
    given, letter = json_text(_exhausted(message)), message.letter
    if message.labels:
        row = await pool.fetchrow(_PUT_LABELLED, given, quiet, letter.tenant, letter.run_id, json_text(message.labels))
    else:
        row = await pool.fetchrow("SELECT * FROM put_dead_letter($1, $2)", given, quiet)
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
        "module": letter.module,
        "pipeline": message.pipeline,
        "stack": cycle.stack,
        "payload": message.payload,
        "config": message.config.model_dump(mode="json"),
        "correlation_id": message.correlation_id,
        "idempotency_key": message.key,
        "fingerprint": fingerprint(message.pipeline, cycle),
        "revision": message.revision,
        "again": message.again,
        "entry": entry,
        "run": None if letter.foreign else _run(message),
    }


def _run(message: Exhausted) -> dict[str, Any]:
    """Return the row of a pipeline run. A foreign workflow has none: another tenant may use its id again."""
    letter, cycle = message.letter, message.cycle
    return {
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
        "revision": message.revision,
        "claim": run_claim(
            tenant=letter.tenant,
            key=message.key,
            run_id=letter.run_id,
            pipeline=message.pipeline,
            claim=message.claim,
        ),
    }


def _history_entry(cycle: FailedCycle) -> dict[str, Any]:
    return cycle.model_dump(mode="json", include={"cycle", "attempts", "category", "error_type", "message", "build_id"})


async def load_state(pool: Pool, letter: LetterId) -> LetterState | None:
    """Return what the record says; None if there is none."""
    async with transaction(pool, letter.tenant) as connection:
        record = await read(connection, letter)
    return state(letter, record) if record else None


async def open_workflow_tasks(pool: Pool, limit: int) -> list[LetterId]:
    """Return open dead letters of workflows whose workflow tasks fail, of all tenants, the longest unchanged first."""
    sql = """
        SELECT tenant, run_id, step FROM dead_letters
        WHERE config ->> 'kind' = 'workflow_task' AND status IN ('pending', 'replaying') ORDER BY updated_at LIMIT $1
    """
    async with reading(pool, None) as connection:
        rows = await connection.fetch(sql, limit)
    return [LetterId(**dict(row)) for row in rows]


_RESOLUTIONS: Final = {Ending.CANCELED: "run canceled", Ending.DISCARDED: "discarded"}


async def put_outcome(
    pool: Pool, letter: LetterId, outcome: Outcome, reason: str | None = None, run: FinishedRun | None = None
) -> LetterStatus | None:
    """Record how a replay ended, and with it the run, if it has; return the record's status.

    None: the record is not there yet, or behind.
    """
    given = {
        "tenant": letter.tenant,
        "dead_letter": letter.workflow_id,
        "run_id": letter.run_id,
        "step": letter.step,
        "request_id": outcome.request_id,
        "ending": outcome.ending,
        "status": status_after_outcome(outcome),
        "blocked_by": outcome.blocked_by,
        "run_status": RunStatus.CANCELED if outcome.ending is Ending.CANCELED else outcome.run_status,
        "resolution": _RESOLUTIONS.get(outcome.ending),
        "reason": reason,
        "revision": outcome.revision,
        "after": outcome.after,
    }
    status = await pool.fetchval(
        "SELECT put_outcome($1), put_finished($2)", json_text(given), run.text() if run else None
    )
    return LetterStatus(status) if status else None


async def put_orphaned(pool: Pool, letter: LetterId) -> bool:
    """Record that the run of an open dead letter is gone, and return whether that is new."""
    async with changing(pool, letter) as (connection, record):
        if record is None or LetterStatus(record["status"]).closed or record["orphaned"]:
            return False
        await mark_orphaned(connection, letter)
        after = {"status": LetterStatus.PENDING, "orphaned": True}
        await write(connection, Entry(action=Action.ORPHANED, letter=letter, before=before(record), after=after))
        return True
