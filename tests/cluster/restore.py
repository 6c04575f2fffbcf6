"""Backups and restores, as the runbook has them: what is lost in each case is counted.

1. The whole PostgreSQL, Temporal's databases too, goes back to an earlier moment.
2. Only Redrive's database goes back to an earlier dump; Temporal is kept.
3. Redrive's database is lost without a backup; Temporal is kept.
4. Temporal's databases are lost without a backup; Redrive's is kept.
"""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, replace

from redrive.dead_letters import Answer
from redrive.errors import RedriveError, StackError
from redrive.store.migrate import migrate
from tests.cluster import modules
from tests.cluster.case import Case, Service, key_of, open_case, parks
from tests.cluster.cluster import Cluster
from tests.cluster.fleet import Fleet, running_fleet
from tests.cluster.part import run_script

QUEUE = "restored"
_BATCH = 50
_WORKERS = 1
_TEMPORAL = ("temporal", "temporal_visibility")
_WHO = {"requested_by": "ada", "reason": "Temporal lost"}


@dataclass
class Drill:
    """The runs of the drills, on one cluster."""

    cluster: Cluster
    case: Case
    fleet: Fleet
    number: int

    async def batch(self) -> list[int]:
        """Make runs, every tenth of which is parked, and wait until each has ended or has its record."""
        numbers = list(range(self.number, self.number + _BATCH))
        self.number += _BATCH
        await self.case.start(numbers)
        await self.case.results([self.case.runs[number] for number in numbers if not parks(number)])
        await self.case.until_parked()
        return numbers

    async def workers_down(self) -> None:
        """Stop the workers."""
        await asyncio.gather(*(worker.stop() for worker in self.fleet.workers.values()))

    async def workers_up(self) -> None:
        """Start them again."""
        await asyncio.gather(*(worker.start() for worker in self.fleet.workers.values()))

    async def temporal_down(self) -> None:
        """Stop all who write to Temporal's databases."""
        await self.workers_down()
        await asyncio.gather(*(node.stop() for node in self.cluster.nodes))

    async def temporal_up(self) -> None:
        """Start the nodes again."""
        for node in self.cluster.nodes:
            await node.start()

    async def known(self, numbers: list[int]) -> int:
        """Count the runs of a batch that Temporal knows."""
        answers = await asyncio.gather(
            *(self.case.redrive.status(self.case.runs[number]) for number in numbers), return_exceptions=True
        )
        return sum(not isinstance(answer, BaseException) for answer in answers)

    async def rows(self) -> dict[str, int]:
        """Count Redrive's records of the drills' tenant."""
        tables = ("runs", "dead_letters", "audit_log")
        counts = [
            await self.cluster.database.sql(
                f"SELECT count(*) FROM redrive.{table} WHERE tenant = '{self.case.tenant}'",  # noqa: S608 - our own names
                "redrive",
            )
            for table in tables
        ]
        return {table: int(count) for table, count in zip(tables, counts, strict=True)}

    async def command(self, *words: str) -> str:
        """Run a command of Redrive's for the drills' tenant, as an operator does."""
        program = (sys.executable, "-m", "redrive.starter.cli.main")
        environment = self.cluster.environment | self.cluster.logins
        return await run_script(*program, *words, "--tenant", self.case.tenant, environment=environment, codes=(0, 1))

    async def reconcile(self, *words: str) -> dict[str, int]:
        """Compare, or repair, and count what was found by kind."""
        text = await self.command("reconcile", "--json", *words)
        if "{" not in text:
            raise StackError(text)
        problems = json.JSONDecoder().raw_decode(text[text.index("{") :])[0]["problems"]
        return dict(Counter(f"{problem['kind']}{'' if problem['repaired'] else ' (left)'}" for problem in problems))


async def run_restore(cluster: Cluster) -> list[str]:
    """Make every drill, one after another."""
    async with Service().serving() as service:
        settings = {
            "REDRIVE_MODULES": modules.__name__,
            "REDRIVE_SERVICES": json.dumps({"sink": {"base_url": service.address}}),
            "REDRIVE_TASK_QUEUE": QUEUE,
        }
        async with (
            running_fleet(cluster, _WORKERS, **settings) as fleet,
            open_case(cluster, service, task_queue=QUEUE, tenant="restore") as case,
        ):
            problems: list[str] = []
            for number, drill in enumerate(DRILLS, 1):
                service.refusing = True
                own = replace(case, runs={}, tenant=f"restore-{number}")
                problems += await drill(Drill(cluster, own, fleet, number * 1_000_000))
            return problems


async def _all_to_an_earlier_point(drill: Drill) -> list[str]:
    """Lose what came after the mark; callers that ask again with their keys make it good, under the same run ids."""
    database, case = drill.cluster.database, drill.case
    await database.back_up()
    kept = await drill.batch()
    await database.mark("kept")
    lost = await drill.batch()
    before = await drill.rows()
    await drill.temporal_down()
    await drill.cluster.postgres.stop()
    database.restore("kept")
    await drill.cluster.postgres.start()
    await drill.temporal_up()
    await drill.workers_up()
    found, gone = await drill.known(kept), len(lost) - await drill.known(lost)
    after, repaired = await drill.rows(), await drill.reconcile("--repair")
    ids = dict(case.runs)
    await case.start(lost)
    same = sum(case.runs[number] == ids[number] for number in lost)
    await case.until_parked()
    case.service.refusing = False
    await case.replay_parked()
    ended = await case.results(list(case.runs.values()))
    print(
        f"  1. all back to a mark: {found} of {len(kept)} runs kept, {gone} of {len(lost)} later ones gone; "
        f"records {before} -> {after}; reconcile {repaired}; started again by their keys: {same} under the same run "
        f"id; {case.repeated} effects arrived again with the same key",
        flush=True,
    )
    return [f"1: {problem}" for problem in await case.violations(ended)]


async def _redrive_to_an_earlier_dump(drill: Drill) -> list[str]:
    """Parked runs report again; finished runs' rows, keys and the audit log since the dump are lost."""
    database = drill.cluster.database
    dump = str(database.folder / "archive" / "redrive.dump")
    await drill.batch()
    await database.program_run("pg_dump", "-Fc", "-f", dump, "redrive")
    await drill.batch()
    before = await drill.rows()
    await _replace_redrive(drill)
    await database.program_run("pg_restore", "-d", "redrive", dump)
    await drill.workers_up()
    after, repaired = await drill.rows(), await drill.reconcile("--repair")
    print(f"  2. Redrive back to a dump: records {before} -> {after}; reconcile {repaired} -> {await drill.rows()}")
    return await _replayed(drill, "2")


async def _redrive_lost(drill: Drill) -> list[str]:
    """The same without a dump: every parked run reports again."""
    await drill.batch()
    before = await drill.rows()
    await _replace_redrive(drill)
    await migrate(drill.cluster.database.url("redrive"))
    await drill.workers_up()
    repaired = await drill.reconcile("--repair")
    print(f"  3. Redrive's database lost: records {before} -> {await drill.rows()}; reconcile {repaired}", flush=True)
    return await _replayed(drill, "3")


async def _temporal_lost(drill: Drill) -> list[str]:
    """Runs are gone; the records and keys remain. What was parked is started again when its key is reset."""
    case, database = drill.case, drill.cluster.database
    numbers = await drill.batch()
    parked = [number for number in numbers if parks(number)]
    await drill.temporal_down()
    for name in _TEMPORAL:
        await database.sql(f"DROP DATABASE {name} WITH (FORCE)")
    await drill.cluster.set_up_temporal()
    refused = await _refused(drill)
    repaired = await drill.reconcile("--adopt", "--repair")
    await drill.workers_up()
    case.service.refusing = False
    gone, letters = len(numbers) - await drill.known(numbers), [case.letter(case.runs[number]) for number in parked]
    restarted = Counter([await _told(case.redrive.dead_letters.restart(letter, **_WHO)) for letter in letters])
    effects = case.service.arrivals
    await case.start(numbers)
    answered = len(numbers) - await drill.known(numbers)
    for number in parked:
        await drill.command("keys", "reset", key_of(number), "--reason", _WHO["reason"], "--yes")
    await case.start(parked)
    ended = await case.results([case.runs[number] for number in parked])
    discarded = Counter([await _told(case.redrive.dead_letters.discard(letter, **_WHO)) for letter in letters])
    print(
        f"  4. Temporal lost: {gone} of {len(numbers)} runs gone; before --adopt: {refused}; reconcile {repaired}; "
        f"restarts {dict(restarted)}; started again by their keys: {answered} answered from the records; after a reset "
        f"of their keys, {len(ended)} parked ones ran again; {case.service.arrivals - effects} effects since; "
        f"discards {dict(discarded)}; records {await drill.rows()}",
        flush=True,
    )
    return [f"4: {run}: {how}" for run, how in ended.items() if isinstance(how, RedriveError)]


async def _told(answer: Awaitable[Answer]) -> str:
    try:
        told = await answer
    except RedriveError as error:
        return str(error)[:120]
    return "accepted" if told.accepted else told.message[:120]


async def _refused(drill: Drill) -> str:
    """Return what the command says as long as nobody has said that the old namespace is gone for good."""
    try:
        await drill.reconcile()
    except StackError as error:
        return next((line for line in str(error).splitlines() if "belongs to" in line), str(error))[:160]
    return "not refused"


async def _replace_redrive(drill: Drill) -> None:
    """Put an empty database in the place of Redrive's, with the rights that `deploy/postgres/roles.sh` gives."""
    database = drill.cluster.database
    await drill.workers_down()
    await database.sql("DROP DATABASE redrive WITH (FORCE)")
    await database.sql("CREATE DATABASE redrive OWNER redrive")
    await database.sql("REVOKE ALL ON DATABASE redrive FROM PUBLIC")
    await database.sql("GRANT CONNECT ON DATABASE redrive TO redrive_app, redrive_console")


async def _replayed(drill: Drill, name: str) -> list[str]:
    """Replay what is parked, and return the runs that did not succeed."""
    case = drill.case
    case.service.refusing = False
    await case.replay_parked()
    ended = await case.results(list(case.runs.values()))
    return [f"{name}: {run}: {how}" for run, how in ended.items() if isinstance(how, RedriveError)]


DRILLS = (_all_to_an_earlier_point, _redrive_to_an_earlier_dump, _redrive_lost, _temporal_lost)
