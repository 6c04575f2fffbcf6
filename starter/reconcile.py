"""Parked runs (Temporal) against open records (Postgres), both ways.

Temporal's lists lag behind, and a record may be on its way: what looks wrong is looked at again, twice and with the run
itself, before it is called wrong.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from enum import StrEnum
from typing import Final, TypeVar

from pydantic import BaseModel
from temporalio.client import Client
from temporalio.service import RPCError

from redrive.contracts import RunStatus, RunSummary
from redrive.dead_letters import LetterId
from redrive.errors import Unavailable
from redrive.redaction import Redactor
from redrive.visibility import runs_query, summary
from starter.parked import Parked, open_execution, read_parked, tell_letter
from store.dead_letter_lists import get_letter, open_letters
from store.dead_letters import put_orphaned
from store.records import LetterRow
from store.tenancy import Pool

# How long a record, or a run's last word, may be on its way.
GRACE: Final = 2.0
MENDING_PATIENCE: Final = 15.0
_INTERVAL: Final = 0.25
_AT_ONCE: Final = 4
_PAGE: Final = 500
Item = TypeVar("Item")
Found = TypeVar("Found")


class Kind(StrEnum):
    """What is wrong."""

    NO_RECORD = "no_record"
    RUN_GONE = "run_gone"
    NO_ANSWER = "no_answer"


class Problem(BaseModel):
    """One disagreement between the two stores."""

    kind: Kind
    tenant: str
    run_id: str
    step: str
    about: str
    mended: bool = False


class Report(BaseModel):
    """What was compared and what is wrong."""

    parked_runs: int
    open_records: int
    problems: list[Problem]

    @property
    def unmended(self) -> int:
        """How many problems are left."""
        return sum(not problem.mended for problem in self.problems)


class Reconciliation:
    """Compare the two stores, and mend them if asked to."""

    def __init__(self, client: Client, pool: Pool, redactor: Redactor, *, repair: bool) -> None:
        self._client = client
        self._pool = pool
        self._redactor = redactor
        self._repair = repair

    async def run(self, tenant: str | None) -> Report:
        """Return what is wrong, and what of it was mended."""
        try:
            return await self._run(tenant)
        except RPCError as error:
            raise Unavailable(f"Temporal did not answer ({error.status.name.lower()}): try again") from error

    async def _run(self, tenant: str | None) -> Report:
        records = await self._open_records(tenant)
        runs = await self._parked_runs(tenant)
        listed = {run.run_id for run in runs}
        lonely = [run for run in runs if _letter_of(run).workflow_id not in records]
        distant = [row for row in records.values() if row.run_id not in listed and not row.orphaned]
        problems = [
            *await self._twice(lonely, self._without_record, self._give_record),
            *await self._twice(distant, self._without_run, self._mark_orphaned),
        ]
        return Report(parked_runs=len(listed), open_records=len(records), problems=problems)

    async def _open_records(self, tenant: str | None) -> dict[str, LetterRow]:
        records: dict[str, LetterRow] = {}
        after = None
        while page := await open_letters(self._pool, tenant, after, _PAGE):
            records |= {row.id: row for row in page}
            after = page[-1].id
        return records

    async def _parked_runs(self, tenant: str | None) -> list[RunSummary]:
        query = runs_query(tenant=tenant, status=RunStatus.DLQ_PENDING, pipeline=None)
        return [summary(execution) async for execution in self._client.list_workflows(query)]

    async def _twice(
        self,
        suspects: Iterable[Item],
        look: Callable[[Item], Awaitable[Problem | None]],
        mend: Callable[[Problem], Awaitable[bool]],
    ) -> list[Problem]:
        """Look at suspects, and a while later again at those that look wrong; mend what is."""
        first = await _each(suspects, lambda item: _paired(item, look))
        wrong = [item for item, problem in first if problem]
        if wrong:
            await asyncio.sleep(GRACE)
        problems = [problem for problem in await _each(wrong, look) if problem]
        if self._repair:
            for problem, mended in zip(problems, await _each(problems, mend), strict=True):
                problem.mended = mended
        return problems

    async def _without_record(self, run: RunSummary) -> Problem | None:
        try:
            parked = await read_parked(self._client, run.run_id)
        except Unavailable as error:
            return _problem(Kind.NO_ANSWER, _letter_of(run), str(error))
        if parked is None:
            return None
        found = await self._record_problem(parked)
        return _problem(Kind.NO_RECORD, parked.letter, found) if found else None

    async def _record_problem(self, parked: Parked) -> str | None:
        record = await get_letter(self._pool, parked.letter.tenant, parked.letter.workflow_id)
        if record is None:
            return "the run is parked and has no record"
        if record.cycle < parked.cycle.cycle:
            return f"the run is parked in cycle {parked.cycle.cycle}, its record tells of cycle {record.cycle}"
        return f"the run is parked, its record is {record.status.value}" if record.status.closed else None

    async def _give_record(self, problem: Problem) -> bool:
        try:
            parked = await read_parked(self._client, problem.run_id)
        except Unavailable:
            return False
        if parked is None:
            return True
        await tell_letter(self._client, parked, self._redactor)
        give_up = asyncio.get_running_loop().time() + MENDING_PATIENCE
        while await self._record_problem(parked):
            if asyncio.get_running_loop().time() > give_up:
                return False
            await asyncio.sleep(_INTERVAL)
        return True

    async def _without_run(self, row: LetterRow) -> Problem | None:
        if await open_execution(self._client, row.run_id):
            return None
        record = await get_letter(self._pool, row.tenant, row.id)
        if record is None or record.status.closed or record.orphaned:
            return None
        return _problem(Kind.RUN_GONE, row.letter, f"the record is {record.status.value}, its run has ended or is gone")

    async def _mark_orphaned(self, problem: Problem) -> bool:
        await put_orphaned(self._pool, _letter(problem))
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


def _letter_of(run: RunSummary) -> LetterId:
    return LetterId(tenant=run.tenant, run_id=run.run_id, step=run.failed_step or "")


def _letter(problem: Problem) -> LetterId:
    return LetterId(tenant=problem.tenant, run_id=problem.run_id, step=problem.step)


def _problem(kind: Kind, letter: LetterId, about: str) -> Problem:
    return Problem(kind=kind, tenant=letter.tenant, run_id=letter.run_id, step=letter.step, about=about)
