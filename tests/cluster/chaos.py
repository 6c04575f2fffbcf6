"""Runs of three steps while nodes are killed, PostgreSQL restarts, links are cut and workers are replaced."""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from redrive import Redrive
from redrive.contracts import TASK_QUEUE
from tests.chaos.case import clock
from tests.cluster import modules
from tests.cluster.case import Case, Service, parks
from tests.cluster.cluster import Cluster
from tests.cluster.fleet import Fleet, running_fleet

WORKERS = 2
_PAUSE = 4.0
_OUTAGE = 6.0
# A pass over all troubles takes a minute; without an end, little would ever be done on a slow machine.
_RUNS_A_PASS = 300


@dataclass
class Trouble:
    """What is done to a cluster, in turns, for the length of a block."""

    cluster: Cluster
    done: Counter[str] = field(default_factory=Counter)

    @property
    def kinds(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """All that can be done here."""
        kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "node 1 killed": lambda: self.cluster.nodes[0].restart(killed=True, pause=_OUTAGE),
            "PostgreSQL restarted": lambda: self.cluster.postgres.restart(pause=1.0),
            "nodes cut from each other": self._apart,
            "node 2 killed": lambda: self.cluster.nodes[1].restart(killed=True, pause=_OUTAGE),
            "node 2 cut from everyone": self._alone,
            "PostgreSQL killed": lambda: self.cluster.postgres.restart(killed=True),
        }
        return kinds if self.cluster.network.can_cut else {k: v for k, v in kinds.items() if "cut" not in k}

    @contextlib.asynccontextmanager
    async def going_on(self, passes: int) -> AsyncIterator[None]:
        """Make trouble, every kind so often at most, until the block ends; what has begun is brought to its end."""
        stop = asyncio.Event()
        self._making = asyncio.create_task(self._make(stop, passes))
        try:
            yield
        finally:
            stop.set()
            await self._making

    async def until(self, count: int) -> None:
        """Wait until so many troubles have come to their end."""
        while self.done.total() < count and not self._making.done():  # noqa: ASYNC110  # they come one by one, seconds apart
            await asyncio.sleep(0.1)

    async def _make(self, stop: asyncio.Event, passes: int) -> None:
        for _ in range(passes):
            for name, trouble in self.kinds.items():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PAUSE):
                        await stop.wait()
                        return
                print(f"  {time.strftime('%H:%M:%S')} {name}", flush=True)
                await trouble()
                self.done[name] += 1

    async def _apart(self) -> None:
        with self.cluster.network.nodes_apart():
            await asyncio.sleep(_OUTAGE)

    async def _alone(self) -> None:
        with self.cluster.network.node_alone(1):
            await asyncio.sleep(_OUTAGE)


async def run_chaos(cluster: Cluster, runs: int) -> list[str]:
    """Make the runs, and return what is wrong in the end."""
    async with Service().serving() as service:
        services = json.dumps({"sink": {"base_url": service.address}})
        async with running_fleet(
            cluster, WORKERS, REDRIVE_MODULES=modules.__name__, REDRIVE_SERVICES=services
        ) as fleet:
            client = await cluster.client()
            case = Case(Redrive(client, task_queue=TASK_QUEUE), client, cluster.database, service)
            return await _acts(cluster, case, fleet, runs)


async def _acts(cluster: Cluster, case: Case, fleet: Fleet, runs: int) -> list[str]:
    trouble, seconds = Trouble(cluster), clock()
    case.service.refusing = True
    first = runs * 9 // 10
    async with trouble.going_on(1 + runs // _RUNS_A_PASS):
        for portion in range(len(trouble.kinds)):
            so_far = trouble.done.total()
            await case.start(range(first)[portion :: len(trouble.kinds)])
            await trouble.until(so_far + 1)
        print(f"  {first} runs started after {seconds():.0f} s", flush=True)
        flowing = [run for number, run in case.runs.items() if not parks(number)]
        ended = await case.results(flowing)
        await case.until_parked()
    print(f"  {len(ended)} ended, {len(case.parked)} parked after {seconds():.0f} s: {dict(trouble.done)}", flush=True)
    await asyncio.gather(fleet.roll_out("2"), case.start(range(first, runs)))
    await case.until_parked()
    print(f"  workers replaced with {len(case.parked)} runs parked, after {seconds():.0f} s", flush=True)
    case.service.refusing = False
    async with trouble.going_on(1):
        await case.replay_parked()
        ended |= await case.results([run for run in case.runs.values() if run not in ended])
    missed = [f"not shown: {name} never happened" for name in trouble.kinds if not trouble.done[name]]
    problems = await case.violations(ended)
    print(
        f"  {len(case.runs)} runs, {len(case.parked)} parked and replayed in {seconds():.0f} s; {dict(trouble.done)}; "
        f"{case.repeated} effects arrived again with the same key; {len(problems)} violations",
        flush=True,
    )
    return problems + missed
