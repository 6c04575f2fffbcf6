"""What runs and the attempts of their steps leave in the database.

A run's row and its key, a stored result, counters, the list of retries, a projector's record. Only the stored result
and the counters are waited for: without them, a step that asked to run once, or within a limit, does not run. A run's
end is written when its history has it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from redrive.categories import Category
from redrive.contracts import (
    ATTEMPT_TEXT_LIMIT,
    Activity,
    Attempt,
    ClaimRequest,
    KeyClaim,
    RunEnd,
    RunStatus,
    StepInput,
)
from redrive.errors import RedriveError, Transient
from redrive.idempotency.claims import Settlement, without_secrets
from redrive.idempotency.postgres_claims import run_claim
from redrive.idempotency.starts import record_key_later
from redrive.logs import get_logger
from redrive.modules import RunCounters
from redrive.postgres.database import DATABASE_ERRORS, CircuitBreaker, Database
from redrive.postgres.tenancy import Session
from redrive.redaction.redactor import Redactor
from redrive.store.events.records import put_projection
from redrive.store.runs import (
    Execution,
    FinishedRun,
    RetryingStep,
    add_to_counter,
    begin_step,
    clear_retrying,
    finish_step,
    put_finished,
    put_retrying,
)

LONGEST: Final = timedelta(seconds=1)
# Besides its timeout, how late the next attempt may be before the step is no longer counted.
LATE: Final = timedelta(minutes=1)
PROJECTION_TIMEOUT: Final = timedelta(seconds=1)

log = get_logger(__name__)


class RunEnds:
    """Write how runs ended. What is not written while the database is down is settled by the sweep."""

    def __init__(self, client: Client, database: Database, redactor: Redactor, *, task_queue: str) -> None:
        """Write in the loop that runs now; workflows may call from other threads."""
        self._client = client
        self._task_queue = task_queue
        self._breaker = CircuitBreaker(database.deadline_pool, LONGEST)
        self._redactor = redactor
        self._loop = asyncio.get_running_loop()
        # By workflow run id: ends that Temporal may still refuse.
        self._kept: dict[str, RunEnd] = {}
        self._writing: set[asyncio.Task[None]] = set()

    @activity.defn(name=Activity.RECORD_END)
    async def record_end(self, end: RunEnd) -> None:
        """Write that a run succeeded; if its last steps are in no history yet, when Temporal has taken its end."""
        if end.when_closed:
            self.keep(activity.info().workflow_run_id or "", end)
        else:
            await self.write(end)

    def keep(self, workflow_run_id: str, end: RunEnd) -> None:
        """Keep the end of a run until the run leaves the worker."""
        self._kept[workflow_run_id] = end

    def left(self, workflow_run_id: str, *, is_closed: bool | None) -> None:
        """Write the end of a run that leaves the worker, if Temporal has taken it; None: ask Temporal."""
        end = self._kept.pop(workflow_run_id, None)
        if end and is_closed is not False:
            self._loop.call_soon_threadsafe(self._begin_to_write, workflow_run_id, end, is_closed)

    def _begin_to_write(self, workflow_run_id: str, end: RunEnd, is_closed: bool | None) -> None:
        writing = asyncio.create_task(self._write_if_taken(workflow_run_id, end, is_closed))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)

    async def _write_if_taken(self, workflow_run_id: str, end: RunEnd, is_closed: bool | None) -> None:
        try:
            if is_closed or await self._is_taken(workflow_run_id, end):
                await self.write(end)
        except RPCError as error:
            _tell(error)

    async def _is_taken(self, workflow_run_id: str, end: RunEnd) -> bool:
        description = await self._client.get_workflow_handle(end.run_id, run_id=workflow_run_id).describe()
        return description.status is WorkflowExecutionStatus.COMPLETED

    async def finish(self) -> None:
        """Wait for what is being written."""
        await asyncio.gather(*self._writing)

    async def write(self, end: RunEnd) -> None:
        """Write the row of a run that succeeded, and of its key, in one round trip."""
        run = await self.finished(end)

        async def is_written(session: Session) -> bool:
            await put_finished(session, run)
            return True

        if not await self._breaker.ask(is_written, _tell) and end.key is not None and end.claim:
            await self._have_key_recorded(end, end.key, end.claim)

    async def _have_key_recorded(self, end: RunEnd, key: str, claim: KeyClaim) -> None:
        """See to a key without a row, which the sweep does not know: a crash of the database may undo a claim."""
        request = ClaimRequest(tenant=end.tenant, key=key, run_id=end.run_id, pipeline=end.pipeline, **dict(claim))
        try:
            await record_key_later(self._client, self._task_queue, request)
        except RPCError as error:
            _tell(error)

    async def finished(self, end: RunEnd) -> FinishedRun:
        """Return what is stored of a run that succeeded."""
        outcome = Settlement(status=RunStatus.SUCCESS, output=end.output)
        if end.claim is not None:
            outcome = await without_secrets(outcome, self._redactor)
        return FinishedRun(
            run_id=end.run_id,
            tenant=end.tenant,
            pipeline=end.pipeline,
            status=RunStatus.SUCCESS,
            correlation_id=self._redactor.text(end.correlation_id),
            idempotency_key=self._redactor.text(end.key) if end.key is not None else None,
            started_at=end.started_at,
            revision=end.revision,
            claim=run_claim(
                tenant=end.tenant, key=end.key, run_id=end.run_id, pipeline=end.pipeline, claim=end.claim, end=outcome
            ),
            labels={name: self._redactor.text(value) for name, value in end.labels.items()},
        )


def _tell(error: Exception) -> None:
    log.warning("run.row_not_written", error_type=type(error).__name__, error=str(error))


async def once(database: Database, execution: Execution, run: Callable[[], Awaitable[Any]]) -> Any:
    """Return the stored result of the step, or run it and store what it returns.

    Without the database the step does not run: the module asked for effects that happen once.
    """
    try:
        pool = await database.pool()
        stored = await begin_step(pool, execution)
    except DATABASE_ERRORS as error:
        raise Transient(f"the stored results cannot be reached: {error}", category=Category.NETWORK) from error
    if stored.is_done:
        log.info("step.deduplicated")
        return stored.output
    if not stored.may_run:
        raise _superseded(execution)
    output = await run()
    try:
        standing = await finish_step(pool, execution, output)
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


@dataclass(frozen=True)
class StoredCounters:
    """The counters of one run, in the database. Without it a step that counts does not run: it asked for a limit."""

    database: Database
    tenant: str
    run_id: str

    async def add(self, name: str, amount: int, *, limit: int | None = None) -> int | None:
        """Add to a counter and return its value; None if that would exceed the limit."""
        try:
            pool = await self.database.pool()
            return await add_to_counter(
                pool, tenant=self.tenant, run_id=self.run_id, name=name, amount=amount, limit=limit
            )
        except DATABASE_ERRORS as error:
            raise Transient(f"the run's counters cannot be reached: {error}", category=Category.NETWORK) from error


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
            step=given.place,
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
                step=given.place,
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


class StepRecords(Protocol):
    """What the attempts of steps leave behind, and where."""

    def counters(self, given: StepInput) -> RunCounters:
        """Return the counters of a step's run."""
        ...

    async def once(self, execution: Execution, run: Callable[[], Awaitable[Any]]) -> Any:
        """Return the stored result of a step, or run it and store what it returns."""
        ...

    async def retried(self, given: StepInput, failed: Attempt, delay: timedelta) -> None:
        """Record that an attempt failed and another follows."""
        ...

    async def ended(self, given: StepInput, attempt: int) -> None:
        """Record that an attempt has ended the step."""
        ...

    async def projected(self, given: StepInput, attempt: int, took: timedelta) -> None:
        """Record that a projector succeeded."""
        ...


class DatabaseRecords:
    """The records of steps in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        retries = Retries(database)
        self.retried, self.ended = retries.put, retries.clear

    def counters(self, given: StepInput) -> StoredCounters:
        """Return the counters of a step's run."""
        return StoredCounters(self._database, given.tenant, given.scope)

    async def once(self, execution: Execution, run: Callable[[], Awaitable[Any]]) -> Any:
        """Return the stored result of a step, or run it and store what it returns."""
        return await once(self._database, execution, run)

    async def projected(self, given: StepInput, attempt: int, took: timedelta) -> None:
        """Record that a projector succeeded."""
        await write_projection(self._database, given, attempt, took)
