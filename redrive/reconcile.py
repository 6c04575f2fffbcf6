"""Compares what Temporal and Postgres both know: runs and their rows, keys, dead letters, bulk operations.

Temporal's lists lag behind, and a record may be on its way: a suspected problem is checked again, twice and with the
run itself, before it is reported.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, TypeVar

from pydantic import BaseModel
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from redrive.bulk import BulkView
from redrive.contracts import RunStatus, RunSummary, StepStatus
from redrive.dead_letters import Ending, LetterId, LetterStatus, OperationKind, Outcome
from redrive.errors import Unavailable
from redrive.missed_ends import MissedEnds
from redrive.postgres.tenancy import Pool
from redrive.run_probe import Parked, ask_to_report, execution_status, read_parked, read_run, step_of
from redrive.store.bulk.lists import open_bulks
from redrive.store.bulk.operations import abandon_bulk
from redrive.store.dead_letters.lists import get_letter, open_letters
from redrive.store.dead_letters.models import LetterRecord, LetterRow
from redrive.store.dead_letters.records import put_orphaned, put_outcome
from redrive.visibility import runs_query, summary

# How long a record, or a run's last report, may be on its way.
GRACE: Final = 2.0
REPAIR_TIMEOUT: Final = 15.0
_INTERVAL: Final = 0.25
_AT_ONCE: Final = 4
_PAGE: Final = 500
Item = TypeVar("Item")
Found = TypeVar("Found")


class Kind(StrEnum):
    """What is wrong."""

    NO_RECORD = "no_record"
    COMMAND_LOST = "command_lost"
    OUTCOME_LOST = "outcome_lost"
    RUN_GONE = "run_gone"
    NO_ANSWER = "no_answer"
    ROW_BEHIND = "row_behind"
    KEY_BEHIND = "key_behind"
    BULK_GONE = "bulk_gone"


# What a run's end means for a record that is still open. After any other end it can be restarted or discarded.
ENDINGS: Final = {
    WorkflowExecutionStatus.COMPLETED: Ending.SUCCEEDED,
    WorkflowExecutionStatus.CANCELED: Ending.CANCELED,
    # Nothing else lets a run of ours fail once it has been parked. The record was restored from before the discard.
    WorkflowExecutionStatus.FAILED: Ending.DISCARDED,
}
# A foreign workflow that has ended by itself, or continued as new, has closed its dead letters: the report was lost.
FOREIGN_ENDINGS: Final = dict.fromkeys(
    (
        WorkflowExecutionStatus.COMPLETED,
        WorkflowExecutionStatus.CANCELED,
        WorkflowExecutionStatus.FAILED,
        WorkflowExecutionStatus.CONTINUED_AS_NEW,
    ),
    Ending.CANCELED,
)
# Of a workflow whose workflow tasks failed: only one whose code runs again can end so.
TASK_ENDINGS: Final = FOREIGN_ENDINGS | dict.fromkeys(
    (WorkflowExecutionStatus.COMPLETED, WorkflowExecutionStatus.CONTINUED_AS_NEW), Ending.SUCCEEDED
)


class Problem(BaseModel):
    """One disagreement between the two stores."""

    kind: Kind
    tenant: str
    run_id: str
    step: str
    about: str
    ending: Ending | None = None
    repaired: bool = False

    @property
    def letter(self) -> LetterId:
        """Which dead letter it is about."""
        return LetterId(tenant=self.tenant, run_id=self.run_id, step=self.step)


class Report(BaseModel):
    """What was compared and what is wrong."""

    parked_runs: int
    open_records: int
    problems: list[Problem]

    @property
    def left(self) -> int:
        """How many problems are left."""
        return sum(not problem.repaired for problem in self.problems)


class Reconciliation:
    """Compare the two stores, and fix them if asked to."""

    def __init__(
        self,
        client: Client,
        pool: Pool,
        ends: MissedEnds,
        *,
        repair: bool,
        unattended: bool = False,
        quiet: timedelta = timedelta(0),
    ) -> None:
        """Records that were changed less than `quiet` ago are left to the next sweep: more is on its way."""
        self._quiet = quiet
        self._client = client
        self._pool = pool
        self._ends = ends
        self._repair = repair
        self._unattended = unattended

    async def run(self, tenant: str | None) -> Report:
        """Return what is wrong, and what of it was fixed."""
        try:
            return await self._run(tenant)
        except RPCError as error:
            raise Unavailable(f"Temporal did not answer ({error.status.name.lower()}): try again") from error

    async def _run(self, tenant: str | None) -> Report:
        records = await self._open_records(tenant)
        runs = await self._parked_runs(tenant)
        listed = {run.run_id for run in runs}
        fresh = self._fresh(records.values())
        waiting = fresh | {row.id for row in records.values() if row.status is LetterStatus.PENDING}
        lonely = [run for run in runs if _letter_of(run).workflow_id not in waiting]
        parked_at = fresh | {_letter_of(run).workflow_id for run in runs}
        distant = [row for row in records.values() if row.id not in parked_at and not row.orphaned]
        bulks = [bulk for bulk in await open_bulks(self._pool) if tenant in {None, bulk.tenant}]
        problems = [
            # First: callers wait for these, and runs that report again may take their time.
            *await self._missed_runs(tenant),
            *await self._missed_keys(tenant),
            *await self._twice(lonely, self._parked_problem, self._have_it_reported),
            *await self._twice(distant, self._open_problem, self._close_or_orphan),
            *await self._twice(bulks, self._bulk_problem, self._end_bulk),
        ]
        return Report(parked_runs=len(listed), open_records=len(records), problems=problems)

    def _fresh(self, records: Iterable[LetterRow]) -> set[str]:
        # One of the future is of another clock: it is not fresh for ever.
        now = datetime.now(UTC)
        return {row.id for row in records if now - self._quiet < row.updated_at <= now}

    async def _missed_runs(self, tenant: str | None) -> list[Problem]:
        problems = []
        async for missed in self._ends.runs(tenant):
            if missed.problem:
                problems.append(_unread(missed.row.tenant, missed.row.run_id, missed.problem))
                continue
            row, word = missed.row, missed.status.value if missed.status else "that it knows no such run"
            about = f"its row says {row.status.value}, Temporal says {word}"
            problems.append(Problem(kind=Kind.ROW_BEHIND, tenant=row.tenant, run_id=row.run_id, step="", about=about))
            if self._repair:
                await self._ends.settle_run(missed)
                problems[-1].repaired = True
        return problems

    async def _missed_keys(self, tenant: str | None) -> list[Problem]:
        problems = []
        async for missed in self._ends.keys(tenant):
            if missed.problem:
                problems.append(_unread(missed.row.tenant, missed.row.run_id, missed.problem))
                continue
            row, word = missed.row, missed.status.value if missed.status else "that it knows no such run"
            about = f"its key is in process, Temporal says {word}"
            problems.append(Problem(kind=Kind.KEY_BEHIND, tenant=row.tenant, run_id=row.run_id, step="", about=about))
            if self._repair:
                await self._ends.settle_key(missed)
                problems[-1].repaired = True
        return problems

    async def _bulk_problem(self, bulk: BulkView) -> Problem | None:
        """Check a bulk operation that is open: without a workflow nothing more will happen."""
        try:
            status = await execution_status(self._client, bulk.id)
        except Unavailable as error:
            return _unread(bulk.tenant, bulk.id, str(error))
        if status is WorkflowExecutionStatus.RUNNING:
            return None
        about = f"the bulk operation is {bulk.status.value}, its workflow has ended or is gone"
        return Problem(kind=Kind.BULK_GONE, tenant=bulk.tenant, run_id=bulk.id, step="", about=about)

    async def _end_bulk(self, problem: Problem) -> bool:
        """End a bulk operation. Started again with its request id, it would continue: a person decides which."""
        if self._unattended or problem.kind is Kind.NO_ANSWER:
            return False
        await abandon_bulk(self._pool, problem.tenant, problem.run_id)
        return True

    async def _open_records(self, tenant: str | None) -> dict[str, LetterRow]:
        records: dict[str, LetterRow] = {}
        after = None
        while page := await open_letters(self._pool, tenant, after, _PAGE):
            records |= {row.id: row for row in page}
            after = page[-1].id
        return records

    async def _parked_runs(self, tenant: str | None) -> list[RunSummary]:
        query = runs_query(tenant=tenant, status=RunStatus.DLQ_PENDING, pipeline=None)
        return [summary(execution.raw_info) async for execution in self._client.list_workflows(query)]

    async def _twice(
        self,
        suspects: Iterable[Item],
        look: Callable[[Item], Awaitable[Problem | None]],
        repair: Callable[[Problem], Awaitable[bool]],
    ) -> list[Problem]:
        """Check suspects, and after a while check again those that look wrong; fix those that are."""
        first = await _each(suspects, lambda item: _paired(item, look))
        wrong = [item for item, problem in first if problem]
        if wrong:
            await asyncio.sleep(GRACE)
        problems = [problem for problem in await _each(wrong, look) if problem]
        if self._repair:
            for problem, repaired in zip(problems, await _each(problems, repair), strict=True):
                problem.repaired = repaired
        return problems

    async def _parked_problem(self, run: RunSummary) -> Problem | None:
        """Check a run that is listed as parked, without a record that waits for commands."""
        try:
            parked = await read_parked(self._client, run.run_id)
        except Unavailable as error:
            return _problem(Kind.NO_ANSWER, _letter_of(run), str(error))
        return await self._record_problem(parked) if parked else None

    async def _record_problem(self, parked: Parked) -> Problem | None:
        letter, cycle = parked.letter, parked.cycle
        record = await get_letter(self._pool, letter.tenant, letter.workflow_id)
        if record is None:
            return _problem(Kind.NO_RECORD, letter, "the run is parked and has no record")
        if record.cycle != cycle:
            about = f"the run is parked in cycle {cycle}, its record tells of cycle {record.cycle}"
            return _problem(Kind.NO_RECORD, letter, about)
        if record.status is not LetterStatus.PENDING:
            about = f"the run is parked, its record is {record.status.value}: the command did not reach the run"
            return _problem(Kind.COMMAND_LOST, letter, about)
        return None

    async def _have_it_reported(self, problem: Problem) -> bool:
        """Let the run report to its dead letter again, and wait until the record is updated."""
        try:
            return not await ask_to_report(self._client, problem.run_id) or await self._is_reported(problem.run_id)
        except Unavailable:
            return False

    async def _is_reported(self, run_id: str) -> bool:
        give_up = asyncio.get_running_loop().time() + REPAIR_TIMEOUT
        while asyncio.get_running_loop().time() < give_up:
            parked = await read_parked(self._client, run_id)
            if parked is None or await self._record_problem(parked) is None:
                return True
            await asyncio.sleep(_INTERVAL)
        return False

    async def _open_problem(self, row: LetterRow) -> Problem | None:
        """Check an open record whose run is not listed as parked at its step."""
        record = await get_letter(self._pool, row.tenant, row.id)
        if record is None or record.status.closed or record.orphaned:
            return None
        try:
            status = await execution_status(self._client, row.run_id, row.letter.execution)
        except Unavailable as error:
            return _problem(Kind.NO_ANSWER, row.letter, str(error))
        if status is WorkflowExecutionStatus.RUNNING:
            # A foreign workflow reports by itself, and what it answers may be encoded.
            return None if row.letter.foreign else await self._done_problem(row)
        about = f"the record is {record.status.value}, its run has ended or is gone"
        if ending := _endings(row.letter, record).get(status) if status else None:
            return _problem(Kind.OUTCOME_LOST, row.letter, about, ending)
        return _problem(Kind.RUN_GONE, row.letter, about)

    async def _done_problem(self, row: LetterRow) -> Problem | None:
        """Tell whether the step of an open record is done in its run, which continues."""
        try:
            run = await read_run(self._client, row.run_id)
        except Unavailable as error:
            return _problem(Kind.NO_ANSWER, row.letter, str(error))
        step = step_of(run, row.step) if run else None
        if step is None or step.status is not StepStatus.SUCCESS:
            return None
        about = f"the record is {row.status.value}, its step is done"
        return _problem(Kind.OUTCOME_LOST, row.letter, about, Ending.SUCCEEDED)

    async def _close_or_orphan(self, problem: Problem) -> bool:
        if problem.kind is Kind.NO_ANSWER:
            return False
        if problem.ending:
            reason = await self._ends.reason(problem.run_id) if problem.ending is Ending.DISCARDED else None
            await put_outcome(self._pool, problem.letter, Outcome(ending=problem.ending), reason)
        else:
            await put_orphaned(self._pool, problem.letter)
        return True


async def _paired(item: Item, look: Callable[[Item], Awaitable[Problem | None]]) -> tuple[Item, Problem | None]:
    return item, await look(item)


async def _each(items: Iterable[Item], work: Callable[[Item], Awaitable[Found]]) -> list[Found]:
    """Do the work for every item, a few at once."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(item: Item) -> Found:
        async with places:
            return await work(item)

    return await asyncio.gather(*(one(item) for item in items))


def _endings(letter: LetterId, record: LetterRecord) -> dict[WorkflowExecutionStatus, Ending]:
    if record.config.get("kind") == OperationKind.WORKFLOW_TASK:
        return TASK_ENDINGS
    return FOREIGN_ENDINGS if letter.foreign else ENDINGS


def _letter_of(run: RunSummary) -> LetterId:
    return LetterId(tenant=run.tenant, run_id=run.run_id, step=run.failed_step or "")


def _unread(tenant: str, run_id: str, about: str) -> Problem:
    return Problem(kind=Kind.NO_ANSWER, tenant=tenant, run_id=run_id, step="", about=about)


def _problem(kind: Kind, letter: LetterId, about: str, ending: Ending | None = None) -> Problem:
    return Problem(kind=kind, tenant=letter.tenant, run_id=letter.run_id, step=letter.step, about=about, ending=ending)
