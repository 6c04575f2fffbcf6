"""Redrive on a real Temporal cluster: `python -m tests.cluster` builds it, brings it up and runs every stage.

Ends with 0 when every stage found what must be, with 1 and what is wrong otherwise, and with 2 when it cannot run.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

from redrive.errors import StackError
from redrive.logs import configure_logging
from tests.chaos.case import clock
from tests.cluster.acceptance import run_acceptance
from tests.cluster.chaos import run_chaos
from tests.cluster.cluster import Cluster, running_cluster
from tests.cluster.differences import run_differences
from tests.cluster.restore import run_restore
from tests.cluster.retention import run_retention
from tests.cluster.throughput import run_throughput
from tests.cluster.versioning import run_versioning

SHOWN = 20
Stage = Callable[[Cluster, argparse.Namespace], Awaitable[list[str]]]
STAGES: dict[str, Stage] = {
    "acceptance": lambda cluster, words: run_acceptance(cluster, *words.tests),
    "chaos": lambda cluster, words: run_chaos(cluster, words.runs),
    "versioning": lambda cluster, _: run_versioning(cluster),
    "restore": lambda cluster, _: run_restore(cluster),
    "retention": lambda cluster, _: run_retention(cluster),
    "differences": lambda cluster, _: run_differences(cluster),
    "throughput": lambda cluster, words: run_throughput(cluster, words.rounds),
}


def main() -> None:
    """Run it as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__.partition(":")[0])
    parser.add_argument("--runs", type=int, default=5000, help="runs of the chaos stage")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the throughput stage")
    parser.add_argument("--tests", nargs="*", default=[], help="test files of the acceptance stage, instead of all")
    parser.add_argument("stages", nargs="*", default=list(STAGES), help=f"some of: {', '.join(STAGES)}")
    words = parser.parse_args()
    if unknown := set(words.stages) - set(STAGES):
        parser.error(f"no such stage: {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}")
    configure_logging("error")
    try:
        problems = asyncio.run(run_stages(words))
    except StackError as error:
        print(f"CLUSTER: {error}", file=sys.stderr, flush=True)
        os._exit(2)
    for problem in problems[:SHOWN]:
        print(f"  VIOLATION: {problem}")
    print(f"{len(problems)} violations" if problems else "no violation")
    sys.stdout.flush()
    # Interpreter shutdown with Temporal's native threads alive can crash; everything is stopped by now.
    os._exit(1 if problems else 0)


async def run_stages(words: argparse.Namespace) -> list[str]:
    """Bring the cluster up and run the stages, each on what the ones before it left."""
    seconds = clock()
    problems: list[str] = []
    async with running_cluster() as cluster:
        print(f"Temporal {cluster.programs.version} at {cluster.address}: up after {seconds():.0f} s", flush=True)
        for name in words.stages:
            print(f"{name}:", flush=True)
            problems += [f"{name}: {problem}" for problem in await STAGES[name](cluster, words)]
    return problems


if __name__ == "__main__":
    main()
