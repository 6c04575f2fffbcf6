"""Runs of three steps while nodes are killed, PostgreSQL restarts, links are cut and workers are replaced."""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from redrive.contracts import TASK_QUEUE
from tests.chaos.case import clock
from tests.cluster import modules
from tests.cluster.case import Case, Service, open_case, parks
from tests.cluster.cluster import Cluster
from tests.cluster.edges import Edges, running_edges
from tests.cluster.fleet import Fleet, running_fleet

WORKERS = 2
TENANT = "cluster"
_OUTAGE = 6.0
# Between two troubles the cluster must have worked again: on a slow machine it would never get to it otherwise.
_PAUSE = 4.0
_FEWEST_EFFECTS = 30
_RUNS_AN_EFFECT = 20
_LONGEST_PAUSE = 120.0
_RUNS_A_PASS = 2500
# Beside every tenth run comes an event by Redis and a message by RabbitMQ.
_RUNS_AN_EVENT = 10


@dataclass
class Trouble:
    """What is done to a cluster, in turns, for the length of a block."""

    cluster: Cluster
    service: Service
    effects_between: int
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
        # What waits for the cluster is ended if it cannot be brought back.
        async with asyncio.TaskGroup() as tasks:
            self._making = tasks.create_task(self._make(stop, passes))
            try:
                yield
            finally:
                stop.set()

    async def until(self, count: int) -> None:
        """Wait until so many troubles have come to their end."""
        while self.done.total() < count and not self._making.done():  # noqa: ASYNC110  # they come one by one, seconds apart
            await asyncio.sleep(0.1)

    async def _make(self, stop: asyncio.Event, passes: int) -> None:
        for _ in range(passes):
            for name, trouble in self.kinds.items():
                await self._pause(stop)
                if stop.is_set():
                    return
                print(f"  {time.strftime('%H:%M:%S')} {name}", flush=True)
                await trouble()
                self.done[name] += 1

    async def _pause(self, stop: asyncio.Event) -> None:
        """Wait until some effects have arrived since the last trouble, for a while at least and at most."""
        seconds, before = clock(), self.service.arrivals
        while not stop.is_set() and seconds() < _LONGEST_PAUSE:
            if seconds() > _PAUSE and self.service.arrivals >= before + self.effects_between:
                return
            await asyncio.sleep(0.1)

    async def _apart(self) -> None:
        with self.cluster.network.nodes_apart():
            await asyncio.sleep(_OUTAGE)

    async def _alone(self) -> None:
        with self.cluster.network.node_alone(1):
            await asyncio.sleep(_OUTAGE)


async def run_chaos(cluster: Cluster, runs: int) -> list[str]:
    """Make the runs, and return what is wrong in the end."""
    async with Service().serving() as service:
        settings = {
            "REDRIVE_MODULES": modules.__name__,
            "REDRIVE_SERVICES": json.dumps({"sink": {"base_url": service.address}}),
        }
        async with (
            running_fleet(cluster, WORKERS, **settings) as fleet,
            running_edges(cluster, service, settings) as edges,
            open_case(cluster, service, task_queue=TASK_QUEUE, tenant=TENANT) as case,
        ):
            return await _acts(cluster, case, fleet, edges, runs)


async def _acts(cluster: Cluster, case: Case, fleet: Fleet, edges: Edges, runs: int) -> list[str]:
    trouble, seconds = Trouble(cluster, case.service, max(_FEWEST_EFFECTS, runs // _RUNS_AN_EFFECT)), clock()
    case.service.refusing = True
    first = runs * 9 // 10
    async with trouble.going_on(1 + runs // _RUNS_A_PASS):
        for portion in range(len(trouble.kinds)):
            so_far = trouble.done.total()
            part = range(first)[portion :: len(trouble.kinds)]
            await asyncio.gather(case.start(part), edges.send(max(1, len(part) // _RUNS_AN_EVENT)))
            await trouble.until(so_far + 1)
        print(f"  {first} runs started after {seconds():.0f} s", flush=True)
        flowing = [run for number, run in case.runs.items() if not parks(number)]
        ended = await case.results(flowing)
        await case.until_parked()
        await edges.until_done()
    print(f"  {len(ended)} ended, {len(case.parked)} parked after {seconds():.0f} s: {dict(trouble.done)}", flush=True)
    await asyncio.gather(fleet.roll_out("2"), case.start(range(first, runs)))
    await case.until_parked()
    print(f"  workers replaced with {len(case.parked)} runs parked, after {seconds():.0f} s", flush=True)
    case.service.refusing = False
    async with trouble.going_on(1):
        await case.replay_parked(edges.replay)
        ended |= await case.results([run for run in case.runs.values() if run not in ended])
    missed = [f"not shown: {name} never happened" for name in trouble.kinds if not trouble.done[name]]
    problems = await case.violations(ended) + await edges.violations()
    print(
        f"  {edges.summary}\n"
        f"  {len(case.runs)} runs, {len(case.parked)} parked and replayed in {seconds():.0f} s; {dict(trouble.done)}; "
        f"{case.repeated} effects arrived again with the same key; {len(problems)} violations",
        flush=True,
    )
    return problems + missed
