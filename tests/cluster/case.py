"""Runs of three steps, every tenth of which is parked, and every seventh effect fails once: started and compared."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from temporalio.client import Client

from redrive import Redrive, RunStatus
from redrive.contracts import RunResult
from redrive.dead_letters import LetterId
from redrive.errors import RedriveError
from redrive.idempotency.postgres_claims import PostgresClaims
from redrive.missed_ends import MissedEnds
from redrive.postgres.database import open_pool
from redrive.reconcile import Reconciliation
from redrive.redaction.redactor import Redactor
from redrive.store.audit import verify
from tests.acceptance.live import Sink, insist
from tests.bench.measure import in_turn
from tests.chaos.case import clock
from tests.cluster.cluster import Cluster
from tests.cluster.database import ClusterDatabase
from tests.cluster.modules import EFFECTS, FRAGILE, PIPELINE, STEPS

T = TypeVar("T")
# Sends the command to replay a dead letter, with a request id, until it is answered.
Replay = Callable[[LetterId, str], Awaitable[None]]

PATIENCE = 600.0
_AT_ONCE = 20
_WAITERS = 100
_AGREED_WITHIN = 240.0


class Service(Sink):
    """Refuses every tenth order's charge for good while it is broken, and every seventh effect once."""

    def __init__(self) -> None:
        super().__init__(delay=0.01)
        self._failed_once: set[str] = set()

    def refusal(self, path: str) -> str | None:
        """Return how a request is refused, if it is."""
        number, step = int(path.split("/")[1]), path.split("/")[2]
        if self.refusing and step == FRAGILE and parks(number):
            return "422 Unprocessable Content"
        if (number + EFFECTS.index(step)) % 7 == 3 and path not in self._failed_once:
            self._failed_once.add(path)
            return "503 Service Unavailable"
        return None


@contextlib.asynccontextmanager
async def open_case(cluster: Cluster, service: Service, *, task_queue: str, tenant: str) -> AsyncIterator["Case"]:
    """Give a case a client that keeps its keys in PostgreSQL, as programs do, while the block lasts."""
    client = await cluster.client()
    claims = PostgresClaims(cluster.database.url("redrive_app"))
    async with Redrive(client, task_queue=task_queue, claims=claims) as redrive:
        yield Case(redrive, client, cluster.database, service, tenant)


def parks(number: int) -> bool:
    """Tell whether an order's charge is refused while the service is broken."""
    return number % 10 == 0


def key_of(number: int) -> str:
    """Return the key that an order is started with."""
    return f"cluster:{number}"


@dataclass
class Case:
    """The runs of a chaos run."""

    redrive: Redrive
    client: Client
    database: ClusterDatabase
    service: Service
    tenant: str
    runs: dict[int, str] = field(default_factory=dict)

    def letter(self, run_id: str) -> LetterId:
        """Name the dead letter of a run."""
        return LetterId(tenant=self.tenant, run_id=run_id, step=FRAGILE)

    @property
    def parked(self) -> list[str]:
        """The runs that are parked, or have been."""
        return [run_id for number, run_id in self.runs.items() if parks(number)]

    async def start(self, numbers: Sequence[int]) -> None:
        """Start runs, each with a key, however often it must be asked for."""

        async def one(number: int) -> None:
            order, key = {"number": number}, key_of(number)
            started = await insist(
                lambda: self.redrive.start(PIPELINE, order, tenant=self.tenant, key=key), within=PATIENCE
            )
            self.runs[number] = started.run_id

        await side_by_side(_AT_ONCE, numbers, one)

    async def until_parked(self) -> None:
        """Wait until every run that must be parked has its record."""
        async with asyncio.timeout(PATIENCE):
            while True:
                with contextlib.suppress(RedriveError):
                    if sum(row.split()[1] == "pending" for row in await self.records()) >= len(self.parked):
                        return
                await asyncio.sleep(0.5)

    async def records(self) -> list[str]:
        """Return the dead letters as lines: run, status, cycle, how often it was replayed."""
        rows = await self.database.sql(
            "SELECT tenant, run_id || ' ' || status || ' ' || cycle || ' ' || replay_count FROM redrive.dead_letters",
            "redrive",
        )
        mine = f"{self.tenant}|"
        return [row.removeprefix(mine) for row in rows.splitlines() if row.startswith(mine)]

    async def replay_parked(self, second: Replay | None = None) -> None:
        """Replay every parked run, each command sent by two callers in turns: the client, and this one or it again."""
        callers = (self._replay, second or self._replay)

        async def one(sent: tuple[Replay, str]) -> None:
            replay, run_id = sent
            await replay(self.letter(run_id), f"again-{run_id}")

        turns = [(replay, run) for number, run in enumerate(self.parked) for replay in in_turn(callers, number)]
        await side_by_side(_AT_ONCE, turns, one)

    async def _replay(self, letter: LetterId, request_id: str) -> None:
        await insist(
            lambda: self.redrive.dead_letters.replay(
                letter, requested_by="ada", reason="mended", request_id=request_id
            ),
            within=PATIENCE,
        )

    async def results(self, run_ids: Sequence[str]) -> dict[str, RunResult | RedriveError]:
        """Wait for runs and return how each ended."""
        ended: dict[str, RunResult | RedriveError] = {}

        async def wait(run_id: str) -> None:
            try:
                ended[run_id] = await insist(lambda: self.redrive.result(run_id), within=PATIENCE)
            except RedriveError as error:
                ended[run_id] = error

        await side_by_side(_WAITERS, run_ids, wait)
        return ended

    async def violations(self, ended: dict[str, RunResult | RedriveError]) -> list[str]:
        """Compare runs, records, audit log, effects and Temporal's list with one run and one replay each."""
        problems = [f"{run}: {how}" for run, how in ended.items() if not _succeeded(how)]
        problems += [f"{run} has no end" for run in self.runs.values() if run not in ended]
        if len(set(self.runs.values())) != len(self.runs):
            problems.append("two orders have one run")
        problems += self.effect_violations()
        problems += await self._record_violations()
        problems += await self._listed_violations()
        return problems + await self._reconciled()

    def effect_violations(self) -> list[str]:
        """Return the effects of which there is none, or more than one by different keys."""
        return [
            f"{run_id}: effects of {step!r}: {sorted(keys) or 'none'}"
            for number, run_id in self.runs.items()
            for step in STEPS
            if (keys := set(self.service.keys[f"/{number}/{step}"])) != {f"{run_id}:{step}:effect"}
        ]

    @property
    def repeated(self) -> int:
        """How many effects arrived again under the same key: attempts that were interrupted after their effect."""
        return self.service.arrivals - sum(1 for keys in self.service.keys.values() if keys)

    async def _record_violations(self) -> list[str]:
        rows = await self.records()
        wanted = Counter(f"{run} replayed 1 1" for run in self.parked)
        problems = [f"record {row}: {count} more than must be" for row, count in (Counter(rows) - wanted).items()]
        problems += [f"record {row}: missing" for row in wanted - Counter(rows)]
        pool = await open_pool(self.database.url("redrive"))
        try:
            proofs = await verify(pool, self.tenant)
        finally:
            await pool.close()
        problems += [f"audit log broken at {proof.first_broken}" for proof in proofs if not proof.is_whole]
        if [proof.entries for proof in proofs] != [3 * len(self.parked)]:
            problems.append(f"audit log has {await self._audited()} entries, not {3 * len(self.parked)}")
        return problems

    async def _audited(self) -> str:
        """Return how many entries there are of each action."""
        rows = await self.database.sql(
            f"SELECT action, count(*) FROM redrive.audit_log WHERE tenant = '{self.tenant}' GROUP BY 1",  # noqa: S608 - our own name
            "redrive",
        )
        return ", ".join(rows.split())

    async def _listed_violations(self) -> list[str]:
        """Compare Temporal's own list, which is in PostgreSQL too, and may lag behind by a moment."""
        query = f"RedriveTenant = '{self.tenant}' AND WorkflowType = 'ModuleRun' AND ExecutionStatus = 'Completed'"
        for _ in range(60):
            count = (await self.client.count_workflows(query)).count
            if count == len(self.runs):
                return []
            await asyncio.sleep(0.5)
        return [f"Temporal lists {count} completed runs, not {len(self.runs)}"]

    async def _reconciled(self) -> list[str]:
        """Compare all stores until they agree: what a database that was down has missed is settled every minute."""
        pool = await open_pool(self.database.url("redrive_app"))
        try:
            reconciliation = Reconciliation(self.client, pool, MissedEnds(self.client, pool, Redactor()), repair=False)
            seconds = clock()
            while (problems := (await reconciliation.run(self.tenant)).problems) and seconds() < _AGREED_WITHIN:  # noqa: ASYNC110
                await asyncio.sleep(1.0)
        finally:
            await pool.close()
        print(
            f"  all stores agree after {seconds():.0f} s" if not problems else "  the stores do not agree", flush=True
        )
        return [f"reconcile: {problem.kind} {problem.run_id}" for problem in problems]


def _succeeded(how: RunResult | RedriveError) -> bool:
    return not isinstance(how, RedriveError) and how.status is RunStatus.SUCCESS


async def side_by_side(width: int, items: Sequence[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Do something with each item, so many at once."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(width, len(items))):
            tasks.create_task(worker())
