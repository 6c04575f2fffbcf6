"""What the attempts of a step leave in the database: a stored result, the list of retries, a projector's record.

Only the stored result is waited for: without it, a step that asked to run once does not run.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from redrive.categories import Category
from redrive.contracts import ATTEMPT_TEXT_LIMIT, Attempt, StepInput
from redrive.errors import RedriveError, Transient
from redrive.logs import get_logger
from redrive.postgres.circuit_breaker import CircuitBreaker
from redrive.postgres.database import DATABASE_ERRORS, Database
from redrive.store.events.records import put_projection
from redrive.store.runs.retrying import RetryingStep, clear_retrying, put_retrying
from redrive.store.runs.step_results import Execution, begin, finish

LONGEST: Final = timedelta(seconds=1)
# Besides its timeout, how late the next attempt may be before the step is no longer counted.
LATE: Final = timedelta(minutes=1)
PROJECTION_TIMEOUT: Final = timedelta(seconds=1)

log = get_logger(__name__)


async def once(database: Database, execution: Execution, run: Callable[[], Awaitable[Any]]) -> Any:
    """Return the stored result of the step, or run it and store what it returns.

    Without the database the step does not run: the module asked for effects that happen once.
    """
    try:
        pool = await database.pool()
        stored = await begin(pool, execution)
    except DATABASE_ERRORS as error:
        raise Transient(f"the stored results cannot be reached: {error}", category=Category.NETWORK) from error
    if stored.is_done:
        log.info("step.deduplicated")
        return stored.output
    if not stored.may_run:
        raise _superseded(execution)
    output = await run()
    try:
        standing = await finish(pool, execution, output)
    except DATABASE_ERRORS as error:
        raise Transient(f"the result could not be stored: {error}", category=Category.NETWORK) from error
    if not standing.is_own:
        raise _superseded(execution)
    return standing.output


def _superseded(execution: Execution) -> Transient:
    log.warning("step.superseded")
    return Transient(
        f"a newer execution of step {execution.step!r} has begun: the result of this one, "
        f"attempt {execution.attempt} of cycle {execution.cycle}, does not count"
    )


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
        await self._breaker.ask(lambda session: put_retrying(session, step, policy.timeout + LATE), _not_listed)

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
            _not_listed,
        )


def _not_listed(error: Exception) -> None:
    log.warning("step.retry_not_listed", error_type=type(error).__name__, error=str(error))


async def write_projection(database: Database, given: StepInput, attempt: int, took: timedelta) -> None:
    """Record that a projector succeeded. No run waits for the database: a replay of the projector also writes it."""
    try:
        async with asyncio.timeout(PROJECTION_TIMEOUT.total_seconds()):
            await put_projection(await database.pool(), given, attempt, took)
    except (RedriveError, *DATABASE_ERRORS) as error:
        log.warning("projection.not_recorded", error_type=type(error).__name__, error=str(error))
