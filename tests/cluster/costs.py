"""What one run, one dead letter and one replay cost on the cluster: counted in PostgreSQL, in histories, and as CPU."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import asyncpg
import psutil
from temporalio.client import Client

from redrive import Redrive
from tests.bench.cost import Letters, count_workflows
from tests.bench.history_counts import Count
from tests.bench.letter_contenders import WithDeadLetters
from tests.bench.measure import Cpu, cpu_of, used
from tests.cluster.cluster import Cluster

Processes = dict[str, list[psutil.Process]]
Work = Callable[[], Awaitable[object]]
# PostgreSQL's counters are written by each process when it has been idle for ten seconds.
_COUNTED_AFTER = 11.0
_IDLE = 20.0
_DATABASES = ("temporal", "temporal_visibility", "redrive")
_SHOWN = ("worker", "caller", "Temporal", "PostgreSQL")


def cpu_of_all(processes: Processes) -> Cpu:
    """Return what processes and this one have used so far."""
    used_by = {who: sum(map(cpu_of, each)) for who, each in processes.items()}
    return used_by | {"caller": sum(psutil.Process().cpu_times()[:2])}


@dataclass(frozen=True)
class Costs:
    """Counts for so many of each kind, by the workers of `processes`."""

    cluster: Cluster
    client: Client
    redrive: Redrive
    processes: Processes
    count: int

    async def show(self, kinds: Mapping[str, Work]) -> None:
        """Print what one of each kind costs, then one dead letter and one replay."""
        heads = " | ".join(f"{name}: transactions, rows" for name in _DATABASES)
        print(f"  | one | {heads} | log (WAL) | {' ms | '.join(_SHOWN)} ms |")
        await self._show("idle second", self._idle, int(_IDLE))
        for name, work in kinds.items():
            await self._show(name, work, self.count)
        records = await asyncpg.connect(self.cluster.database.url("redrive"))
        try:
            await self._show_letters(records)
        finally:
            await records.close()

    async def _show_letters(self, records: "asyncpg.Connection[asyncpg.Record]") -> None:
        contender = WithDeadLetters(self.redrive, records, self.processes["worker"][0])
        letters = Letters(self.cluster.folder, contender, self.count)
        before = Count(0, 0, 0, 0)
        for name, work in {"dead letter of 1 step": letters.park, "its replay": letters.replay}.items():
            await self._show(name, work, self.count)
            after = await count_workflows(self.client, letters.tenant, self.count)
            each = [(now - then) / self.count for now, then in zip(after, before, strict=True)]
            tasks, events, size, actions = each
            print(f"  {name}: {tasks:.1f} workflow tasks, {events:.1f} events, {size:.0f} bytes, {actions:.1f} actions")
            before = after

    async def _show(self, name: str, work: Work, count: int) -> None:
        before, cpu = await self._counters(), cpu_of_all(self.processes)
        await work()
        spent = used(cpu, cpu_of_all(self.processes))
        after = await self._counters()
        each = {key: (after[key] - before[key]) / count for key in after}
        cells = [f"{each[f'{base} commits']:.1f}, {each[f'{base} rows']:.1f}" for base in _DATABASES]
        times = " | ".join(f"{1000 * spent[who] / count:.0f}" for who in _SHOWN)
        print(f"  | {name} | {' | '.join(cells)} | {each['log'] / 1000:.1f} kB | {times} |", flush=True)

    async def _idle(self) -> None:
        # The counters are read after a pause, which is idle also.
        await asyncio.sleep(_IDLE - _COUNTED_AFTER)

    async def _counters(self) -> dict[str, int]:
        await asyncio.sleep(_COUNTED_AFTER)
        answer = await self.cluster.database.sql(
            "SELECT datname, xact_commit, tup_inserted + tup_updated + tup_deleted, "
            "pg_current_wal_lsn() - '0/0'::pg_lsn FROM pg_stat_database WHERE datname IS NOT NULL"
        )
        counters: dict[str, int] = {}
        for line in answer.splitlines():
            base, commits, rows, log = line.split("|")
            if base in _DATABASES:
                counters |= {f"{base} commits": int(commits), f"{base} rows": int(rows), "log": int(log)}
        return counters
