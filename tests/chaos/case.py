"""A thousand runs that die, and their replays: started, counted and compared with what must be."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import asyncpg

from redrive import Redrive, RunStatus
from redrive.contracts import RunResult
from redrive.dead_letters import Answer, LetterId
from redrive.errors import RedriveError, Unavailable
from redrive.postgres.database import DRIVER_ERRORS, open_pool
from redrive.store.audit import verify
from tests.acceptance.live import Sink
from tests.chaos.modules import FRAGILE, LATER, PIPELINE

T = TypeVar("T")

TENANT = "chaos"
STARTERS = 20
WAITERS = 100
# Orders that one caller has on their way.
AT_ONCE = 8
DATABASE_TIMEOUT = 10.0


def silent(count: int) -> None:
    """Show nothing."""


@dataclass
class Case:
    """So many runs of one stack."""

    redrive: Redrive
    database_url: str
    sink: Sink
    count: int
    runs: dict[int, str] = field(default_factory=dict)
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    asked_again: int = 0

    def letter(self, run_id: str) -> LetterId:
        """Name the dead letter of a run."""
        return LetterId(tenant=TENANT, run_id=run_id, step=FRAGILE)

    async def start_all(self) -> None:
        """Start every run, however often it must be asked for."""

        async def start(number: int) -> None:
            order = {"number": number}
            started = await self.insist(
                lambda: self.redrive.start(PIPELINE, order, tenant=TENANT, key=f"chaos:{number}")
            )
            self.runs[number] = started.run_id

        await _side_by_side(STARTERS, range(self.count), start)

    async def until_status(self, status: str, wanted: int, progress: Callable[[int], None] = silent) -> None:
        """Wait until at least so many records have a status."""
        while True:
            with contextlib.suppress(*DRIVER_ERRORS):
                rows = await self.rows("SELECT count(*) AS n FROM redrive.dead_letters WHERE status = $1", status)
                progress(rows[0]["n"])
                if rows[0]["n"] >= wanted:
                    return
            await asyncio.sleep(0.5)

    async def replay_all(self, *, callers: int, copies: int) -> None:
        """Let callers send the replays, each of them by so many callers at the same time."""
        groups = max(1, callers // copies)
        letters = [self.letter(run_id) for run_id in self.runs.values()]

        async def send(letter: LetterId) -> None:
            answer = await self.insist(lambda: self._replay(letter))
            self.answers.setdefault(letter.workflow_id, []).append(answer)

        async with asyncio.TaskGroup() as tasks:
            for group in range(groups):
                for _ in range(copies):
                    tasks.create_task(_side_by_side(AT_ONCE, letters[group::groups], send))

    async def _replay(self, letter: LetterId) -> Answer:
        return await self.redrive.dead_letters.replay(
            letter, requested_by="ada", reason="the service is mended", request_id=f"again-{letter.run_id}"
        )

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call again for as long as the product says that something it needs is away."""
        while True:
            with contextlib.suppress(Unavailable):
                return await call()
            self.asked_again += 1
            await asyncio.sleep(0.1)

    async def results(self) -> dict[str, RunResult | RedriveError]:
        """Wait for every run and return how it ended."""
        ended: dict[str, RunResult | RedriveError] = {}

        async def wait(run_id: str) -> None:
            try:
                ended[run_id] = await self.insist(lambda: self.redrive.result(run_id))
            except RedriveError as error:
                ended[run_id] = error

        await _side_by_side(WAITERS, list(self.runs.values()), wait)
        return ended

    async def dead_violations(self) -> list[str]:
        """Compare the records with the runs that died."""
        rows = await self.rows("SELECT id, run_id, status, cycle, version, failure_history FROM redrive.dead_letters")
        found = Counter(row["run_id"] for row in rows)
        problems = [f"run {run} has no record" for run in self.runs.values() if not found[run]]
        problems += [f"run {run} has {n} records" for run, n in found.items() if n > 1]
        problems += [f"record of a run {run} that nobody started" for run in found.keys() - set(self.runs.values())]
        problems += [
            f"{row['id']}: {row['status']}, cycle {row['cycle']}, version {row['version']}"
            for row in rows
            if (row["status"], row["cycle"], row["version"]) != ("pending", 1, 1)
        ]
        return problems + await self._audit_violations({"dead_lettered": 1})

    async def replayed_violations(self, ended: dict[str, RunResult | RedriveError]) -> list[str]:
        """Compare runs, records, audit log, answers and effects with one replay each."""
        problems = [f"{run}: {how}" for run, how in ended.items() if not _succeeded(how)]
        rows = await self.rows("SELECT id, status, cycle, replay_count FROM redrive.dead_letters")
        problems += [
            f"{row['id']}: {row['status']}, cycle {row['cycle']}, replayed {row['replay_count']} times"
            for row in rows
            if (row["status"], row["cycle"], row["replay_count"]) != ("replayed", 1, 1)
        ]
        for letter, answers in self.answers.items():
            if not all(answer.accepted and answer == answers[0] for answer in answers):
                problems.append(f"{letter}: answers differ: {[answer.message for answer in answers]}")
        expected = {"dead_lettered": 1, "replay_requested": 1, "replay_outcome": 1}
        return problems + await self._audit_violations(expected) + self._effect_violations()

    async def _audit_violations(self, expected: dict[str, int]) -> list[str]:
        rows = await self.rows("SELECT dead_letter, action, count(*) AS n FROM redrive.audit_log GROUP BY 1, 2")
        found: dict[str, dict[str, int]] = {self.letter(run).workflow_id: {} for run in self.runs.values()}
        # Those about a bulk operation as a whole name no dead letter.
        others = sum(row["n"] for row in rows if row["dead_letter"] is None)
        for row in rows:
            if row["dead_letter"] is None:
                continue
            found.setdefault(row["dead_letter"], {})[row["action"]] = row["n"]
        problems = [f"{letter}: audit {actions}" for letter, actions in found.items() if actions != expected]
        pool = await open_pool(self.database_url)
        try:
            proofs = await verify(pool, TENANT)
        finally:
            await pool.close()
        entries = [proof.entries for proof in proofs]
        problems += [f"audit log broken at {proof.first_broken}" for proof in proofs if not proof.is_whole]
        if entries != [sum(expected.values()) * self.count + others]:
            problems.append(f"audit log has {entries} entries")
        return problems

    def _effect_violations(self) -> list[str]:
        problems = []
        for number, run_id in self.runs.items():
            for step in (FRAGILE, LATER):
                keys = set(self.sink.keys[f"/{number}/{step}"])
                if keys != {f"{run_id}:{step}:effect"}:
                    problems.append(f"{run_id}: effects of {step!r}: {keys or 'none'}")
        return problems

    @property
    def duplicates(self) -> int:
        """How many effects arrived again, with the same key: attempts of workers that were killed."""
        return self.sink.arrivals - len([keys for keys in self.sink.keys.values() if keys])

    async def rows(self, query: str, *arguments: object) -> list[Any]:
        """Ask the database."""
        async with asyncio.timeout(DATABASE_TIMEOUT), _connection(self.database_url) as connection:
            return await connection.fetch(query, *arguments)


@contextlib.asynccontextmanager
async def _connection(url: str) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        connection.terminate()


def _succeeded(how: RunResult | RedriveError) -> bool:
    """Tell whether a run ended well, its fragile step in the second cycle and the later one in its first."""
    if isinstance(how, RedriveError):
        return False
    return how.status is RunStatus.SUCCESS and [step.cycle for step in how.steps] == [2, 1]


async def _side_by_side(width: int, items: Sequence[T], work: Callable[[T], Awaitable[None]]) -> None:
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(width, len(items))):
            tasks.create_task(worker())


def clock() -> Callable[[], float]:
    """Return a function that tells the seconds since now."""
    began = time.monotonic()
    return lambda: time.monotonic() - began
