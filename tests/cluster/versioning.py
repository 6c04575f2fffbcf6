"""Temporal's worker deployments: parked runs move to the build that becomes current, new ones by the ramp."""

import asyncio
import json
from collections import Counter
from dataclasses import replace

from redrive.starter.stack.temporal_server import find_temporal
from tests.cluster import modules
from tests.cluster.case import Case, Service, open_case, parks
from tests.cluster.cluster import Cluster
from tests.cluster.fleet import Fleet
from tests.cluster.part import run_script

DEPLOYMENT = "cluster"
QUEUE = "versioned"
# Away from the numbers of the chaos stage: orders are known by number.
_FIRST = 1_000_000
_PARKED, _RAMPED = 20, 60


async def run_versioning(cluster: Cluster) -> list[str]:
    """Deploy a second build while runs are parked, by a ramp, and roll back."""
    async with Service().serving() as service:
        settings = {
            "REDRIVE_MODULES": modules.__name__,
            "REDRIVE_SERVICES": json.dumps({"sink": {"base_url": service.address}}),
            "REDRIVE_TASK_QUEUE": QUEUE,
            "REDRIVE_DEPLOYMENT": DEPLOYMENT,
        }
        fleet = Fleet(cluster, settings)
        try:
            async with open_case(cluster, service, task_queue=QUEUE, tenant="versioning") as case:
                return await _releases(cluster, case, fleet)
        finally:
            await asyncio.gather(*(part.stop() for part in fleet.workers.values()))


async def _releases(cluster: Cluster, case: Case, fleet: Fleet) -> list[str]:
    case.service.refusing = True
    await fleet.start("versioned-1", "one")
    await _deployment(cluster, "set-current-version", "one")
    await case.start([_FIRST + 10 * number for number in range(_PARKED)])
    await case.until_parked()
    await fleet.start("versioned-2", "two")
    await _deployment(cluster, "set-ramping-version", "two", "--percentage", "50")
    ramped = replace(case, runs={})
    await ramped.start([number for number in range(_FIRST, _FIRST + 2 * _RAMPED) if not parks(number)][:_RAMPED])
    await ramped.results(list(ramped.runs.values()))
    shares = Counter([await _build_of(case, run) for run in ramped.runs.values()])
    print(f"  {_RAMPED} runs during a ramp of 50%: {dict(shares)}", flush=True)
    await _deployment(cluster, "set-current-version", "two")
    await fleet.stop("versioned-1")
    case.service.refusing = False
    await case.replay_parked()
    ended = await case.results(case.parked)
    builds = Counter([await _build_of(case, run) for run in case.parked])
    print(f"  {_PARKED} runs parked under build one, replayed when two is current: {dict(builds)}", flush=True)
    case.runs |= ramped.runs
    problems = await case.violations(ended | await ramped.results(list(ramped.runs.values())))
    if set(shares) != {"one", "two"}:
        problems.append(f"the ramp of 50% gave {dict(shares)}")
    if builds != {"two": _PARKED}:
        problems.append(f"parked runs were continued by {dict(builds)}")
    return problems + await _roll_back(cluster, case, fleet)


async def _roll_back(cluster: Cluster, case: Case, fleet: Fleet) -> list[str]:
    await fleet.start("versioned-3", "one")
    await _deployment(cluster, "set-current-version", "one")
    back = replace(case, runs={})
    await back.start([_FIRST + 1_000_001 + number for number in range(9)])
    await back.results(list(back.runs.values()))
    builds = Counter([await _build_of(case, run) for run in back.runs.values()])
    print(f"  rolled back: {len(back.runs)} runs, {dict(builds)}", flush=True)
    return [] if builds == {"one": len(back.runs)} else [f"after the roll-back, runs had {dict(builds)}"]


async def _build_of(case: Case, run_id: str) -> str:
    """Return the build that made a run's last workflow task."""
    description = await case.client.get_workflow_handle(run_id).describe()
    info = description.raw_description.workflow_execution_info.versioning_info
    return info.deployment_version.build_id


async def _deployment(cluster: Cluster, command: str, build: str, *words: str) -> None:
    """Say which build is current, as the runbook does; a new worker's version is known after a moment."""
    address = ("--address", cluster.address, "--namespace", "default")
    which = ("--deployment-name", DEPLOYMENT, "--build-id", build)
    await run_script(
        *(str(find_temporal()), "worker", "deployment", command, *which, *words, "--yes", *address),
        environment={"HOME": str(cluster.folder)},
    )
