"""Runs of three steps a second: Redrive's and plain Temporal's on the cluster, with 1, 2 and 4 workers, and embedded.

The contenders take turns in the same minutes. Then what one run of each, a dead letter and a replay cost is counted.
"""

import asyncio
import os
import sys
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
from temporalio.client import Client

from redrive import Pipeline, Redrive
from redrive.connection import connect_temporal
from redrive.settings import Settings
from redrive.starter.stack.children import Program
from tests.bench import letter_steps, modules
from tests.bench.contenders import FAST, PLAIN, REDRIVE, stage, with_bytecode
from tests.bench.letter_steps import URL as LETTERS_URL
from tests.bench.measure import Cpu, Round, figures_of, in_turn, time_calls, used
from tests.bench.models import ORDER
from tests.bench.plain import PlainRun
from tests.cluster.cluster import NODES, Cluster
from tests.cluster.costs import Costs, Processes, cpu_of_all
from tests.cluster.fleet import Fleet
from tests.cluster.part import Part
from tests.cluster.server_build import ROOT

WORKERS = (1, 2, 4)
_QUEUE = "throughput"
_STEPS, _AT_ONCE, _RUNS = 3, 50, 100
_ONE_BY_ONE = 15
Run = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Contender:
    """A way to run the steps, and the processes that are counted for it."""

    run: Run
    processes: Processes

    def cpu(self) -> Cpu:
        """Return what the processes have used so far."""
        return cpu_of_all(self.processes)


async def run_throughput(cluster: Cluster, rounds: int) -> list[str]:
    """Measure, and print tables; nothing here can be wrong."""
    print(f"  load average before: {os.getloadavg()[0]:.1f}, {psutil.cpu_count()} cores", flush=True)
    print(
        "  | on | workers | at once | as | runs/s | of plain | p50 | p99 ms | worker | caller | Temporal | PostgreSQL |"
    )
    names = f"{modules.__name__},{letter_steps.__name__}"
    fleet = Fleet(cluster, {"REDRIVE_MODULES": names, "REDRIVE_TASK_QUEUE": _QUEUE})
    try:
        for workers in WORKERS:
            await _grow(fleet, workers)
            contenders = await _on_cluster(cluster, fleet)
            await _compare("cluster", workers, contenders, rounds)
            if workers == 1:
                await _compare("cluster", workers, contenders, rounds, at_once=1, runs=_ONE_BY_ONE)
                await _count_costs(cluster, fleet, contenders)
    finally:
        await asyncio.gather(*(part.stop() for part in fleet.workers.values()))
    async with stage(modules.__name__) as on:
        processes = {
            "Temporal": [psutil.Process(on.info.children["temporal"])],
            "PostgreSQL": [psutil.Process(on.info.children["postgres"])],
        }
        own = {name: {"worker": [process], **processes} for name, process in on.workers.items()}
        contenders = _contenders(on.redrive, on.client, own[REDRIVE], own[PLAIN])
        await _compare("embedded", 1, contenders, rounds)
        await _compare("embedded", 1, contenders, rounds, at_once=1, runs=_ONE_BY_ONE)
    return []


async def _count_costs(cluster: Cluster, fleet: Fleet, contenders: dict[str, Contender]) -> None:
    client = await connect_temporal(Settings(temporal_address=cluster.node_address(0)))
    workers = [psutil.Process(part.pid) for part in fleet.workers.values()]
    costs = Costs(cluster, client, Redrive(client, task_queue=_QUEUE), _servers(cluster) | {"worker": workers}, _RUNS)
    await costs.show({n: partial(time_calls, c.run, at_once=_AT_ONCE, count=_RUNS) for n, c in contenders.items()})


async def _grow(fleet: Fleet, workers: int) -> None:
    """Start workers until there are so many of each kind, each at a node of its own by turns, past the balancer."""
    for number in range(len(fleet.workers) // 2, workers):
        address = fleet.cluster.node_address(number % NODES)
        await fleet.start(f"{REDRIVE}-{number + 1}", TEMPORAL_ADDRESS=address)
        program = _plain_worker(fleet.cluster, f"{PLAIN}-{number + 1}", address)
        fleet.workers[program.name] = Part(program, fleet.logs)
        await fleet.workers[program.name].start()


def _plain_worker(cluster: Cluster, name: str, address: str) -> Program:
    ready = cluster.folder / f"{name}.ready"
    environment = with_bytecode(cluster.environment, cluster.folder)
    return Program(
        name=name,
        title=name,
        command=[sys.executable, "-m", "tests.bench.plain_worker", address, PLAIN, str(ready), "sandbox"],
        environment={**environment, LETTERS_URL: cluster.database.url("redrive")},
        directory=Path(ROOT),
        ready=partial(asyncio.to_thread, ready.exists),
    )


async def _on_cluster(cluster: Cluster, fleet: Fleet) -> dict[str, Contender]:
    settings = Settings(temporal_address=cluster.node_address(0))
    client = await connect_temporal(settings)
    servers = _servers(cluster)

    def own(prefix: str) -> Processes:
        names = [name for name in fleet.workers if name.startswith(prefix)]
        return {"worker": [psutil.Process(fleet.workers[name].pid) for name in names], **servers}

    return _contenders(Redrive(client, task_queue=_QUEUE), client, own(REDRIVE), own(PLAIN))


def _servers(cluster: Cluster) -> Processes:
    return {
        "Temporal": [psutil.Process(node.pid) for node in cluster.nodes],
        "PostgreSQL": [psutil.Process(cluster.postgres.pid)],
    }


def _contenders(redrive: Redrive, client: Client, ours: Processes, plain: Processes) -> dict[str, Contender]:
    return {
        REDRIVE: Contender(partial(_run_redrive, redrive, modules.PIPELINES[_STEPS]), ours),
        FAST: Contender(partial(_run_redrive, redrive, modules.FAST_PIPELINES[_STEPS]), ours),
        PLAIN: Contender(partial(_run_plain, client), plain),
    }


async def _run_redrive(redrive: Redrive, pipeline: Pipeline) -> object:
    started = await redrive.start(pipeline, ORDER)
    return await redrive.result(started.run_id)


async def _run_plain(client: Client) -> object:
    return await client.execute_workflow(
        PlainRun.run, args=[ORDER, _STEPS], id=f"plain-{uuid.uuid4().hex}", task_queue=PLAIN
    )


async def _compare(
    where: str,
    workers: int,
    contenders: dict[str, Contender],
    rounds: int,
    *,
    at_once: int = _AT_ONCE,
    runs: int = _RUNS,
) -> None:
    taken: dict[str, list[Round]] = {name: [] for name in contenders}
    for contender in contenders.values():
        await time_calls(contender.run, at_once=at_once, count=at_once)
    for number in range(rounds):
        for name in in_turn(contenders, number):
            taken[name].append(await _round(contenders[name], at_once, runs))
    for name in contenders:
        figures = figures_of(name, taken)
        cpu = " | ".join(f"{figures.cpu_ms[who]:.0f}" for who in ("worker", "caller", "Temporal", "PostgreSQL"))
        ratio = figures.ratios.get(PLAIN, "")
        times = f"{figures.p50_ms:,.0f} | {figures.p99_ms:,.0f}"
        how = f"{where} | {workers} | {at_once} | {name}"
        print(f"  | {how} | {figures.per_s:.1f} | {ratio} | {times} | {cpu} |", flush=True)


async def _round(contender: Contender, at_once: int, runs: int) -> Round:
    before = contender.cpu()
    wall, latencies = await time_calls(contender.run, at_once=at_once, count=runs)
    return Round(wall, latencies, used(before, contender.cpu()))
