"""The rows of finished runs and of their keys. A run reports its end when its history has it, and waits for nobody."""

from datetime import timedelta
from typing import Final

from temporalio import activity

from redrive.contracts import Activity, RunEnd, RunStatus
from redrive.idempotency.claims import Settlement, without_secrets
from redrive.idempotency.postgres_claims import run_claim
from redrive.logs import get_logger
from redrive.postgres.circuit_breaker import CircuitBreaker
from redrive.postgres.database import Database
from redrive.redaction.redactor import Redactor
from redrive.store.runs.rows import put_finished

LONGEST: Final = timedelta(seconds=1)

log = get_logger(__name__)


class RunEnds:
    """Write how runs ended. What is not written while the database is down is settled by the sweep."""

    def __init__(self, database: Database, redactor: Redactor) -> None:
        self._breaker = CircuitBreaker(database.deadline_pool, LONGEST)
        self._redactor = redactor

    @activity.defn(name=Activity.RECORD_END)
    async def record_end(self, end: RunEnd) -> None:
        """Write the row of a run that succeeded, and of its key, in one round trip."""
        outcome = Settlement(status=RunStatus.SUCCESS, output=end.output)
        if end.claim is not None:
            outcome = await without_secrets(outcome, self._redactor)
        claim = run_claim(
            tenant=end.tenant, key=end.key, run_id=end.run_id, pipeline=end.pipeline, claim=end.claim, end=outcome
        )
        await self._breaker.ask(
            lambda session: put_finished(
                session,
                run_id=end.run_id,
                tenant=end.tenant,
                pipeline=end.pipeline,
                status=RunStatus.SUCCESS,
                correlation_id=self._redactor.text(end.correlation_id),
                key=self._redactor.text(end.key) if end.key is not None else None,
                started_at=end.started_at,
                claim=claim,
            ),
            _tell,
        )


def _tell(error: Exception) -> None:
    log.warning("run.row_not_written", error_type=type(error).__name__, error=str(error))
