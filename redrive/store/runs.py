"""What lists need of runs and their steps: their rows, operators' commands, retries, stored results, counters.

Temporal is the authority on runs and retries, but cannot list or count them as the console does. The record of a
`continue` is a line in the audit log and the run's row; it changes no dead letter. A module with `dedupe=True` gets its
stored result when its step is executed again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json

from redrive.categories import Category
from redrive.contracts import ActivityVerb, PendingActivity, RunStatus, RunSummary
from redrive.dead_letters import Answer, Continue, LetterId
from redrive.field_types import Moment
from redrive.postgres.paging import COUNTED, Page, Place, Query, Total, check_limit, cut, read_cursor, select
from redrive.postgres.tenancy import QUARANTINE, Executor, Pool, reading, transaction
from redrive.postgres.values import Record, clean, clean_or_none, json_text
from redrive.store.audit import Action, Entry, RunEntry, write, write_run_entry

_COLUMNS: Final = "run_id, tenant, pipeline, status, failed_step, category, started_at, closed_at"
_ONE: Final = select(_COLUMNS, "runs", "WHERE run_id = $1")
_RETRYING_COLUMNS: Final = """
    tenant, run_id, step, pipeline, cycle, attempt, max_attempts, category, error_type, error, failed_at, next_at
"""
RESULT_KEPT: Final = timedelta(days=30)


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """How a run ended, with the row of its key (`run_claim`), if it is the run of one."""

    run_id: str
    tenant: str
    pipeline: str
    status: RunStatus
    correlation_id: str | None
    idempotency_key: str | None
    started_at: datetime
    revision: int
    claim: dict[str, Any] | None = None
    labels: Mapping[str, str] | None = None

    def text(self) -> str:
        """Return what the database takes."""
        return json_text(vars(self) | {"labels": dict(self.labels) if self.labels else None})


async def put_finished(database: Executor, run: FinishedRun) -> None:
    """Record how a run ended, in one round trip."""
    await database.execute("SELECT put_finished($1)", run.text())


class UnheardRun(NamedTuple):
    """A run that its row says is open."""

    updated_at: datetime
    run_id: str
    tenant: str
    status: RunStatus


# A run that is parked at an open dead letter is compared with that.
_UNHEARD: Final = """
    SELECT updated_at, run_id, tenant, status FROM runs
    WHERE closed_at IS NULL AND updated_at < now() - $1::interval AND (updated_at, run_id) > ($3, $4)
        AND ($5::text IS NULL OR tenant = $5) AND (status <> 'DLQ_PENDING' OR NOT EXISTS (
            SELECT FROM dead_letters AS letter WHERE letter.tenant = runs.tenant AND letter.run_id = runs.run_id
                AND letter.status IN ('pending', 'replaying')))
    ORDER BY updated_at, run_id LIMIT $2
"""
# Only if the run has reported nothing since.
_CORRECT: Final = """
    UPDATE runs SET status = $3, closed_at = $4, updated_at = now(),
        failed_step = CASE WHEN $3 <> 'SUCCESS' THEN failed_step END,
        category = CASE WHEN $3 <> 'SUCCESS' THEN category END
    WHERE tenant = $1 AND run_id = $2 AND closed_at IS NULL AND updated_at = $5
"""
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def list_unheard_runs(
    pool: Pool, tenant: str | None, quiet: timedelta, limit: int, after: UnheardRun | None
) -> list[UnheardRun]:
    """Return runs that may have ended without a record, those longest without news first; no tenant: of all."""
    place = (after.updated_at, after.run_id) if after else (_BEGINNING, "")
    async with reading(pool, tenant) as connection:
        records = await connection.fetch(_UNHEARD, quiet, limit, *place, tenant)
    return [UnheardRun(**{**record, "status": RunStatus(record["status"])}) for record in records]


async def correct_run(pool: Pool, run: UnheardRun, status: RunStatus, closed_at: datetime | None) -> None:
    """Record where a run is, or how it ended, as Temporal tells."""
    async with transaction(pool, run.tenant) as connection:
        await connection.execute(_CORRECT, run.tenant, run.run_id, status.value, closed_at, run.updated_at)


async def forget_run(pool: Pool, run: UnheardRun) -> None:
    """Delete the row of a run that Temporal does not know: nobody knows how it ended."""
    async with transaction(pool, run.tenant) as connection:
        await connection.execute("SELECT forget_run($1, $2)", run.run_id, run.updated_at)


class RunFilter(BaseModel):
    """Which runs. `tenant` None means all; `since` and `until` are about the start."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tenant: str | None = None
    status: RunStatus | None = None
    pipeline: str | None = None
    since: Moment | None = None
    until: Moment | None = None


async def list_runs(pool: Pool, chosen: RunFilter, limit: int = 50, cursor: str | None = None) -> Page[RunSummary]:
    """Return the newest runs that have a row, after the cursor of the previous page."""
    check_limit(limit)
    query = _query(chosen, read_cursor(cursor, chosen))
    sql = query.select(_COLUMNS, "runs", "ORDER BY started_at DESC, run_id DESC", limit + 1)
    async with reading(pool, chosen.tenant, in_order=True) as connection:
        records = await connection.fetch(sql, *query.parameters)
    rows = [_summary(dict(record)) for record in records]
    return cut(rows, limit, lambda last: Place(last.started_at, last.run_id), chosen)


def _query(chosen: RunFilter, place: Place | None) -> Query:
    query = Query()
    query.where_given("tenant = {}", chosen.tenant)
    query.where_given("status = {}", chosen.status)
    query.where_given("pipeline = {}", clean_or_none(chosen.pipeline))
    query.where_given("started_at >= {}", chosen.since)
    query.where_given("started_at < {}", chosen.until)
    if place is not None:
        query.where("(started_at, run_id) < ({}, {})", place.at, place.id)
    return query


OUTCOMES_COUNTED: Final = 20_000


async def recent_outcomes(pool: Pool, tenant: str | None, since: datetime) -> dict[RunStatus, int]:
    """Return how the newest runs that began since a moment stand, of those that have a row: parked or ended."""
    query = _query(RunFilter(tenant=tenant, since=since), None)
    newest = query.select("status", "runs", "ORDER BY started_at DESC, run_id DESC", OUTCOMES_COUNTED)
    async with reading(pool, tenant, in_order=True) as connection:
        rows = await connection.fetch(
            select("status, count(*)", f"({newest}) AS newest", "GROUP BY status"), *query.parameters
        )
    return {RunStatus(status): count for status, count in rows}


async def get_run(pool: Pool, tenant: str | None, run_id: str) -> RunSummary | None:
    """Return the row of a run, even if Temporal has forgotten it."""
    async with reading(pool, tenant) as connection:
        record = await connection.fetchrow(_ONE, clean(run_id))
    return _summary(dict(record)) if record else None


def _summary(record: Mapping[str, Any]) -> RunSummary:
    return RunSummary(**{**record, "status": RunStatus(record["status"])})


# The tenants of an index, one after another: as many steps as there are tenants, however many rows each has.
_TENANTS: Final = """
    WITH RECURSIVE each AS (
        (SELECT tenant FROM runs ORDER BY tenant LIMIT 1) UNION ALL
        SELECT (SELECT tenant FROM runs WHERE runs.tenant > each.tenant ORDER BY tenant LIMIT 1)
        FROM each WHERE each.tenant IS NOT NULL
    )
    SELECT tenant FROM each WHERE tenant IS NOT NULL UNION SELECT tenant FROM audit_heads WHERE tenant <> $2
    ORDER BY tenant LIMIT $1
"""


async def list_tenants(pool: Pool, limit: int) -> list[str]:
    """Return the tenants that have a run or a line in the audit log, by name."""
    async with reading(pool, None) as connection:
        return [row["tenant"] for row in await connection.fetch(_TENANTS, limit, QUARANTINE)]


_FOUND: Final = """
    SELECT run_id FROM idempotency_keys WHERE tenant = ANY($1::text[]) AND key = $2
    UNION SELECT run_id FROM runs WHERE tenant = ANY($1::text[]) AND correlation_id = $2 AND correlation_id <> run_id
    LIMIT $3
"""
_TENANTS_SEARCHED: Final = 1000


async def find_run_ids(pool: Pool, tenant: str | None, text: str, limit: int = 200) -> list[str]:
    """Return the ids of runs with this key, and of those that were parked or ended with this correlation id."""
    tenants = [tenant] if tenant else await list_tenants(pool, _TENANTS_SEARCHED)
    async with reading(pool, tenant) as connection:
        return [row["run_id"] for row in await connection.fetch(_FOUND, tenants, clean(text), limit)]


async def put_continue(pool: Pool, letter: LetterId, command: Continue, answer: Answer) -> None:
    """Record a `continue` and its answer, once."""
    async with transaction(pool, letter.tenant, alone_with=letter.workflow_id) as connection:
        known = await connection.fetchval(
            """
            SELECT true FROM audit_log
            WHERE tenant = $1 AND dead_letter = $2 AND request_id = $3
            """,
            letter.tenant,
            letter.workflow_id,
            clean(command.request_id),
        )
        if known:
            return
        entry = Entry(
            action=Action.CONTINUED if answer.accepted else Action.REFUSED,
            letter=letter,
            actor=command.requested_by,
            reason=command.reason,
            request_id=command.request_id,
            after={"answer": answer.model_dump(mode="json"), "command": {"verb": command.verb}},
        )
        await write(connection, entry)
        if answer.accepted:
            await connection.execute(
                "UPDATE runs SET status = 'RUNNING', updated_at = now() WHERE run_id = $1 AND status = 'PARTIAL'",
                letter.run_id,
            )


async def put_cancel(pool: Pool, *, tenant: str, run_id: str, actor: str, reason: str) -> None:
    """Record that somebody asked a run to stop, and why; of a parked run, as a command to its open dead letters."""
    async with transaction(pool, tenant) as connection:
        steps = await connection.fetch(
            "SELECT step FROM dead_letters WHERE tenant = $1 AND run_id = $2 AND status IN ('pending', 'replaying')",
            tenant,
            clean(run_id),
        )
        for record in steps:
            letter = LetterId(tenant=tenant, run_id=run_id, step=record["step"])
            await write(connection, Entry(action=Action.CANCEL_REQUESTED, letter=letter, actor=actor, reason=reason))
        if not steps:
            entry = RunEntry(action=Action.CANCEL_REQUESTED, tenant=tenant, run_id=run_id, actor=actor, reason=reason)
            await write_run_entry(connection, entry)


async def put_start_requested(
    pool: Pool, *, tenant: str, run_id: str | None, actor: str, reason: str, facts: dict[str, Any]
) -> None:
    """Record that somebody starts a run, and why: once, if its id is known."""
    action = Action.RUN_START_REQUESTED
    entry = RunEntry(action=action, tenant=tenant, run_id=run_id, actor=actor, reason=reason, after=facts)
    async with transaction(pool, tenant, alone_with=run_id or tenant) as connection:
        known = run_id and await connection.fetchval(
            "SELECT true FROM audit_log WHERE tenant = $1 AND run_id = $2 AND action = $3", tenant, run_id, action.value
        )
        if not known:
            await write_run_entry(connection, entry)


async def put_activity_command(
    pool: Pool, verb: ActivityVerb, named: PendingActivity, *, actor: str, reason: str
) -> None:
    """Record what somebody asks of an activity, before Temporal is asked."""
    facts = named.model_dump(include={"execution", "activity", "activity_id", "attempt"})
    entry = RunEntry(
        action=_ACTIVITY_ACTIONS[verb],
        tenant=named.tenant,
        run_id=named.workflow_id,
        actor=actor,
        reason=reason,
        after=facts,
    )
    async with transaction(pool, named.tenant) as connection:
        await write_run_entry(connection, entry)


_ACTIVITY_ACTIONS: Final = {
    ActivityVerb.PAUSE: Action.ACTIVITY_PAUSE_REQUESTED,
    ActivityVerb.UNPAUSE: Action.ACTIVITY_UNPAUSE_REQUESTED,
    ActivityVerb.RETRY: Action.ACTIVITY_RETRY_REQUESTED,
}


class RetryingStep(Record):
    """A step whose last attempt failed, and another follows."""

    tenant: str
    run_id: str
    step: str
    pipeline: str
    cycle: int
    attempt: int = Field(description="the one that failed last")
    max_attempts: int
    category: Category
    error_type: str
    error: str = Field(description="the beginning of it")
    failed_at: datetime
    next_at: datetime = Field(description="when the next attempt is due")


class RetryingFilter(BaseModel):
    """Which steps. `tenant` None means all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tenant: str | None = None


async def put_retrying(database: Executor, step: RetryingStep, kept: timedelta) -> None:
    """Record that an attempt failed and another follows. It is listed until this long after that one is due."""
    given = step.model_dump() | {"expires_at": step.next_at + kept}
    await database.execute("SELECT put_retrying($1)", json_text(given))


async def clear_retrying(database: Executor, *, tenant: str, run_id: str, step: str, cycle: int, attempt: int) -> None:
    """Record that this attempt has ended the step."""
    given = {"tenant": tenant, "run_id": run_id, "step": step, "cycle": cycle, "attempt": attempt}
    await database.execute("SELECT clear_retrying($1)", json_text(given))


async def list_retrying(
    pool: Pool, chosen: RetryingFilter, limit: int = 50, cursor: str | None = None
) -> Page[RetryingStep]:
    """Return the steps whose next attempt is due first, after the cursor of the previous page."""
    check_limit(limit)
    query = _shown(chosen.tenant)
    place = read_cursor(cursor, chosen)
    if place is not None:
        run_id, _, step = place.id.rpartition(" ")
        query.where("(next_at, run_id, step) > ({}, {}, {})", place.at, clean(run_id), clean(step))
    sql = query.select(_RETRYING_COLUMNS, "retrying", "ORDER BY next_at, run_id, step", limit + 1)
    async with reading(pool, chosen.tenant) as connection:
        records = await connection.fetch(sql, *query.parameters)
    rows = [RetryingStep.model_validate(dict(record)) for record in records]
    return cut(rows, limit, lambda last: Place(last.next_at, f"{last.run_id} {last.step}"), chosen)


async def count_retrying(pool: Pool, tenant: str | None) -> Total:
    """Return how many steps there are, counted up to a limit."""
    query = _shown(tenant)
    sql = select("count(*)", f"({query.select('', 'retrying', limit=COUNTED)}) AS shown")
    async with reading(pool, tenant) as connection:
        count: int = await connection.fetchval(sql, *query.parameters)
    return Total(count=count, exact=count < COUNTED)


def _shown(tenant: str | None) -> Query:
    query = Query(["expires_at > now()"])
    query.where_given("tenant = {}", tenant)
    return query


async def delete_unheard(pool: Pool) -> None:
    """Delete the rows that nobody will clear any more, of all tenants."""
    async with reading(pool, None) as connection:
        tenants = await connection.fetch("SELECT DISTINCT tenant FROM retrying WHERE expires_at < now()")
    for (tenant,) in tenants:
        async with transaction(pool, tenant) as connection:
            await connection.execute("DELETE FROM retrying WHERE tenant = $1 AND expires_at < now()", tenant)


@dataclass(frozen=True)
class Execution:
    """One execution of a step. Cycle and attempt are the fence: only the newest that has begun may write."""

    tenant: str
    key: str
    run_id: str
    step: str
    cycle: int
    attempt: int

    def fields(self) -> dict[str, Any]:
        """Return the row, as the functions in the database take it."""
        return vars(self) | {"expires_at": datetime.now(UTC) + RESULT_KEPT}


@dataclass(frozen=True)
class Standing:
    """The valid result, if there is one; whether this execution may make one, and whether it made this one."""

    is_done: bool
    output: Any
    may_run: bool = False
    is_own: bool = False


async def begin_step(pool: Pool, execution: Execution) -> Standing:
    """Return the stored result, or take the fence for this execution. One round trip."""
    row = await pool.fetchrow("SELECT * FROM begin_step($1)", json_text(execution.fields()))
    if row is None:
        raise LookupError(f"step {execution.key!r}: the database gave no answer")
    return Standing(row["is_done"], _read_output(row["output"]), row["may_run"])


async def finish_step(pool: Pool, execution: Execution, output: Any) -> Standing:
    """Store the result unless a newer execution has begun, and return the valid one. One round trip."""
    row = await pool.fetchrow("SELECT * FROM finish_step($1)", json_text(execution.fields() | {"output": output}))
    if row is None:
        raise LookupError(f"step {execution.key!r}: the database gave no answer")
    return Standing(row["is_done"], _read_output(row["output"]), is_own=row["is_own"])


async def add_to_counter(
    pool: Pool, *, tenant: str, run_id: str, name: str, amount: int, limit: int | None = None
) -> int | None:
    """Add to a run's counter and return its value; None if that would exceed the limit. One round trip."""
    expires_at = datetime.now(UTC) + RESULT_KEPT
    row = {"tenant": tenant, "run_id": run_id, "name": name, "value": amount, "expires_at": expires_at, "limit": limit}
    value: int | None = await pool.fetchval("SELECT add_to_counter($1)", json_text(row))
    return value


def _read_output(output: str | None) -> Any:
    return None if output is None else from_json(output)
