"""What a run's status means for the row that asked for it. Pure.

run           row
RUNNING       in_flight
SUCCESS       delivered, over
DLQ_PENDING   failed: an operator may replay it
FAILED        failed, over
CANCELED      failed, over
PARTIAL       as it was: the run waits for a `continue`
"""

from typing import Any

from redrive.contracts import RunStatus
from redrive.outbox.rows import OutboxStatus
from redrive.store.run_fates import RunFate

Fate = dict[str, Any]


def fate_of(run: RunFate) -> Fate | None:
    """Return what a row is told about its run, as outbox_follow() takes it; None: nothing new."""
    shared = {"run_id": run.run_id, "replayed_by": run.replayed_by, "cycle": run.cycle}
    match run.status:
        case RunStatus.SUCCESS:
            return shared | {"status": OutboxStatus.DELIVERED, "ended": True}
        case RunStatus.DLQ_PENDING:
            return shared | {"status": OutboxStatus.FAILED, "last_error": run.message} | _failure(run)
        case RunStatus.FAILED | RunStatus.CANCELED:
            return shared | {"status": OutboxStatus.FAILED, "ended": True, "last_error": _end(run)} | _failure(run)
        case RunStatus.RUNNING:
            return shared | {"status": OutboxStatus.IN_FLIGHT}
    return None


def ended(run_id: str, error: str | None) -> Fate:
    """Return what a row is told about a run that has ended, as Temporal tells."""
    if error is None:
        return {"run_id": run_id, "status": OutboxStatus.DELIVERED, "ended": True}
    return {"run_id": run_id, "status": OutboxStatus.FAILED, "ended": True, "last_error": error}


def _failure(run: RunFate) -> Fate:
    return {
        "attempts": run.attempt_count,
        "category": run.category,
        "failed_step": run.failed_step,
        "first_failed_at": run.first_failed_at,
        "failed_at": run.last_failed_at,
    }


def _end(run: RunFate) -> str:
    """Say why a run ended without success."""
    if run.status is RunStatus.CANCELED:
        return "the run was canceled"
    if run.resolved_by:
        return f"discarded by {run.resolved_by}: {run.resolution_reason}; {run.message}"
    return run.end_error or run.message or "the run failed"
