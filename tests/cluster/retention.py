"""Retention: Temporal deletes a run some time after its end. Its key, its row and a parked run must outlive that.

A cluster takes no retention under an hour and spreads deletions over half an hour; both are shorter here alone.
"""

import asyncio
import json

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from tests.chaos.case import clock
from tests.cluster import modules
from tests.cluster.case import PATIENCE, Case, Service, open_case, parks
from tests.cluster.cluster import Cluster
from tests.cluster.fleet import running_fleet

QUEUE = "retained"
_FIRST, _RUNS = 9_000_000, 10
_RETENTION = "5s"
_SHORTER = """
system.namespaceMinRetentionLocal:
  - value: 1s
history.retentionTimerJitterDuration:
  - value: 1s
"""


async def run_retention(cluster: Cluster) -> list[str]:
    """Let runs expire, and ask for them again."""
    shipped = cluster.dynamic_config.read_text(encoding="utf-8")
    try:
        await _configure(cluster, shipped + _SHORTER)
        await cluster.run_namespace_script(retention=_RETENTION)
        return await _expire(cluster)
    finally:
        await cluster.run_namespace_script()
        await _configure(cluster, shipped)


async def _configure(cluster: Cluster, text: str) -> None:
    cluster.dynamic_config.write_text(text, encoding="utf-8")
    for node in cluster.nodes:
        await node.restart()


async def _expire(cluster: Cluster) -> list[str]:
    async with Service().serving() as service:
        settings = {
            "REDRIVE_MODULES": modules.__name__,
            "REDRIVE_SERVICES": json.dumps({"sink": {"base_url": service.address}}),
            "REDRIVE_TASK_QUEUE": QUEUE,
        }
        async with (
            running_fleet(cluster, 1, **settings),
            open_case(cluster, service, task_queue=QUEUE, tenant="retention") as case,
        ):
            return await _ask_again(case)


async def _ask_again(case: Case) -> list[str]:
    """Start runs, one of which is parked; when the others are gone, start all of them again with the same keys."""
    case.service.refusing = True
    numbers = range(_FIRST, _FIRST + _RUNS)
    await case.start(numbers)
    flowing = [run for number, run in case.runs.items() if not parks(number)]
    await case.results(flowing)
    await case.until_parked()
    seconds = clock()
    await _until_gone(case.client, flowing)
    print(
        f"  {len(flowing)} ended runs were gone {seconds():.0f} s later, with a retention of {_RETENTION}", flush=True
    )
    ids = dict(case.runs)
    await case.start(numbers)
    problems = [f"{run}: another run after retention" for number, run in ids.items() if case.runs[number] != run]
    problems += [f"{run} was started again" for run in flowing if await _is_known(case.client, run)]
    case.service.refusing = False
    await case.replay_parked()
    ended = await case.results(case.parked)
    rows = await case.database.sql(
        f"SELECT status, count(*) FROM redrive.runs WHERE tenant = '{case.tenant}' GROUP BY 1",  # noqa: S608 - our own name
        "redrive",
    )
    print(f"  started again by their keys: answered from the records; the parked run was replayed; rows: {rows}")
    return problems + case.effect_violations() + [str(how) for how in ended.values() if isinstance(how, Exception)]


async def _until_gone(client: Client, run_ids: list[str]) -> None:
    async with asyncio.timeout(PATIENCE):
        for run_id in run_ids:
            while await _is_known(client, run_id):  # noqa: ASYNC110  # it happens in the server
                await asyncio.sleep(0.5)


async def _is_known(client: Client, run_id: str) -> bool:
    try:
        await client.get_workflow_handle(run_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return True
