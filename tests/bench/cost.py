"""Count what runs, dead letters and replays cost, whatever the machine: `python -m tests.bench.cost`.

Workflow tasks, events and bytes of Temporal's histories, billable actions of Temporal Cloud, rows and bytes in
PostgreSQL.
"""

import argparse
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import asyncpg
from pydantic import BaseModel, TypeAdapter
from rich.table import Table
from temporalio.client import Client

from redrive import Pipeline
from redrive.contracts import SearchAttribute
from tests.bench.contenders import REDRIVE, Stage, stage
from tests.bench.history_counts import Count, counted
from tests.bench.letter_contenders import WithDeadLetters
from tests.bench.letter_rounds import side_by_side, until
from tests.bench.letter_steps import FIXED_FILE, Errand
from tests.bench.measure import time_calls
from tests.bench.models import ORDER
from tests.bench.modules import FAST_PIPELINES, PIPELINES
from tests.bench.program import count, run_program
from tests.conftest import eventually, owner_url

AT_ONCE = 20
_TABLES = """
    SELECT relid::regclass::text AS name, pg_total_relation_size(relid) AS size
    FROM pg_stat_user_tables WHERE schemaname = 'redrive'
"""


class Cost(BaseModel):
    """What one costs, on average. `wal_bytes` is what PostgreSQL writes to its log."""

    what: str
    tasks: float
    events: float
    history_bytes: float
    actions: float
    rows: float
    postgres_bytes: float
    wal_bytes: float


COST_LIST = TypeAdapter(list[Cost])


async def count_workflows(client: Client, tenant: str, at_least: int) -> Count:
    """Count the histories of all workflows of a tenant, together."""

    async def ids() -> list[str] | None:
        found = [each.id async for each in client.list_workflows(f"{SearchAttribute.TENANT} = '{tenant}'")]
        return found if len(found) >= at_least else None

    total = Count(0, 0, 0, 0)
    for workflow_id in await eventually(ids):
        one = counted((await client.get_workflow_handle(workflow_id).fetch_history()).events)
        total = Count(*(sum(pair) for pair in zip(total, one, strict=True)))
    return total


class Database(NamedTuple):
    """What is in PostgreSQL, and what was written so far."""

    rows: int
    bytes: int
    wal: int


async def read_database(records: "asyncpg.Connection[asyncpg.Record]") -> Database:
    """Count all rows of Redrive's tables, their bytes with indexes, and the bytes of the log."""
    tables = await records.fetch(
        "SELECT relid::regclass::text AS name FROM pg_stat_user_tables WHERE schemaname = 'redrive'"
    )
    rows = [await records.fetchval(f"SELECT count(*) FROM {table['name']}") for table in tables]  # noqa: S608
    size = await records.fetchval(
        "SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables WHERE schemaname = 'redrive'"
    )
    return Database(sum(rows), int(size), await records.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))


class Meter:
    """Measures what a number of runs of one tenant cost."""

    def __init__(self, on: Stage, records: "asyncpg.Connection[asyncpg.Record]", runs: int) -> None:
        self._on = on
        self._records = records
        self._runs = runs
        self._counted: dict[str, Count] = {}

    async def history(self, tenant: str) -> list[float]:
        """Return what each run of a tenant has cost in Temporal since this was last asked."""
        total = await count_workflows(self._on.client, tenant, self._runs)
        earlier = self._counted.get(tenant, Count(0, 0, 0, 0))
        self._counted[tenant] = total
        return [(now - then) / self._runs for now, then in zip(total, earlier, strict=True)]

    async def stored(self, work: Callable[[], Awaitable[object]], runs: int) -> list[float]:
        """Do the work of so many runs, and return what each has cost in PostgreSQL."""
        before = await read_database(self._records)
        await work()
        after = await read_database(self._records)
        return [(now - then) / runs for now, then in zip(after, before, strict=True)]


async def bench(runs: int) -> list[Cost]:
    """Measure on a stack of its own."""
    async with stage("tests.bench.modules", "tests.bench.letter_steps") as on:
        records = await asyncpg.connect(owner_url(on.info))
        meter = Meter(on, records, runs)
        # What is done once for a tenant, a connection or a table is not the cost of a run.
        await _make_runs(on, PIPELINES[1], AT_ONCE, tenant="warm-up")
        costs = await _run_costs(on, meter, runs) + await _letter_costs(on, meter, records, runs)
        await records.close()
        return costs


async def _run_costs(on: Stage, meter: Meter, runs: int) -> list[Cost]:
    kinds = [
        (_name(steps, kind), pipeline)
        for kind, pipelines in (("", PIPELINES), ("fast ", FAST_PIPELINES))
        for steps, pipeline in pipelines.items()
    ]

    async def work() -> None:
        for _, pipeline in kinds:
            await _make_runs(on, pipeline, runs)

    # All kinds leave the same row: together, whole pages of tables are divided by more runs.
    stored = await meter.stored(work, runs * len(kinds))
    return [_cost(what, await meter.history(pipeline.name), stored) for what, pipeline in kinds]


async def _letter_costs(
    on: Stage, meter: Meter, records: "asyncpg.Connection[asyncpg.Record]", runs: int
) -> list[Cost]:
    letters = Letters(on.folder, WithDeadLetters(on.redrive, records, on.workers[REDRIVE]), runs)
    works = {"a run of 1 step that becomes a dead letter": letters.park, "its replay": letters.replay}
    costs = []
    for what, work in works.items():
        stored = await meter.stored(work, runs)
        costs.append(_cost(what, await meter.history(letters.tenant), stored))
    return costs


def _cost(what: str, history: list[float], stored: list[float]) -> Cost:
    tasks, events, history_bytes, actions = history
    rows, postgres_bytes, wal_bytes = stored
    return Cost(
        what=what,
        tasks=tasks,
        events=events,
        history_bytes=history_bytes,
        actions=actions,
        rows=rows,
        postgres_bytes=postgres_bytes,
        wal_bytes=wal_bytes,
    )


def _name(steps: int, kind: str) -> str:
    return f"a run of {steps} {kind}step{'s' if steps > 1 else ''}"


async def _make_runs(on: Stage, pipeline: Pipeline, runs: int, tenant: str = "") -> None:
    async def run() -> object:
        started = await on.redrive.start(pipeline, ORDER, tenant=tenant or pipeline.name)
        return await on.redrive.result(started.run_id)

    await time_calls(run, at_once=AT_ONCE, count=runs)


class Letters:
    """Runs that become dead letters, and are then replayed."""

    def __init__(self, folder: Path, contender: WithDeadLetters, runs: int) -> None:
        self._contender = contender
        self._folder = folder / "cost"
        self._folder.mkdir()
        self._errands = [Errand(number=number, folder=self._folder) for number in range(runs)]
        self._ids: list[str] = []

    @property
    def tenant(self) -> str:
        """Whose they are."""
        return self._folder.name

    async def park(self) -> None:
        """Start the runs, and wait for their records."""
        self._ids = await side_by_side(AT_ONCE, self._errands, self._contender.start)
        await until(self._contender.parked, self._folder, len(self._errands))

    async def replay(self) -> None:
        """Replay them all, and wait until that is recorded."""
        (self._folder / FIXED_FILE).touch()
        await side_by_side(AT_ONCE, self._errands, self._replay_one)
        await until(self._contender.settled, self._folder, len(self._errands))

    async def _replay_one(self, errand: Errand) -> None:
        await self._contender.command(self._folder, self._ids[errand.number])
        await self._contender.ended(self._ids[errand.number])


def tables(costs: list[Cost]) -> list[Table]:
    """Return the figures as tables."""
    heads = ("workflow tasks", "events", "history bytes", "actions", "rows", "PostgreSQL bytes", "WAL bytes")
    table = Table("one of these", title="Cost of one, on average")
    for head in heads:
        table.add_column(head, justify="right")
    for cost in costs:
        counts = [f"{number:.1f}" for number in (cost.tasks, cost.events)]
        sizes = [f"{number:.0f}" for number in (cost.postgres_bytes, cost.wal_bytes)]
        table.add_row(
            cost.what, *counts, f"{cost.history_bytes:.0f}", f"{cost.actions:.1f}", f"{cost.rows:.1f}", *sizes
        )
    return [table]


def main() -> None:
    """Run it as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cost", description=__doc__.partition(":")[0])
    parser.add_argument("--runs", type=count, default=100, help="runs of each kind (default 100)")
    run_program(parser, lambda words: bench(words.runs), COST_LIST, tables)


if __name__ == "__main__":
    main()
