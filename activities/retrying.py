"""The list of steps that will be retried. Nothing here fails or delays an attempt."""

from datetime import timedelta
from typing import Final

from redrive.contracts import ATTEMPT_TEXT_LIMIT, Attempt, StepInput
from redrive.logs import get_logger
from redrive.postgres.circuit_breaker import CircuitBreaker
from redrive.postgres.database import Database
from redrive.store.runs.retrying import RetryingStep, clear_retrying, put_retrying

LONGEST: Final = timedelta(seconds=1)
# Besides its timeout, how late the next attempt may be before the step is no longer counted.
LATE: Final = timedelta(minutes=1)

log = get_logger(__name__)


class Retries:
    """Keep the list of retries in flight. A step whose first attempt succeeds is never on it."""

    def __init__(self, database: Database) -> None:
        self._breaker = CircuitBreaker(database.deadline_pool, LONGEST)

    async def put(self, given: StepInput, failed: Attempt, delay: timedelta) -> None:
        """Record that an attempt failed and another follows."""
        policy = given.step.policy
        step = RetryingStep(
            tenant=given.tenant,
            run_id=given.run_id,
            step=given.step.name,
            pipeline=given.pipeline,
            cycle=given.cycle,
            attempt=failed.attempt,
            max_attempts=policy.curve_for(failed.category).max_attempts,
            category=failed.category,
            error_type=failed.error_type,
            error=failed.error[:ATTEMPT_TEXT_LIMIT],
            failed_at=failed.at,
            next_at=failed.at + delay,
        )
        await self._breaker.ask(lambda session: put_retrying(session, step, policy.timeout + LATE), _tell)

    async def clear(self, given: StepInput, attempt: int) -> None:
        """Record that an attempt has ended the step. A first attempt has nothing to clear."""
        if attempt == 1:
            return
        await self._breaker.ask(
            lambda session: clear_retrying(
                session,
                tenant=given.tenant,
                run_id=given.run_id,
                step=given.step.name,
                cycle=given.cycle,
                attempt=attempt,
            ),
            _tell,
        )


def _tell(error: Exception) -> None:
    log.warning("step.retry_not_listed", error_type=type(error).__name__, error=str(error))
