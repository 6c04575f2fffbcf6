"""The steps as a DBOS workflow, and the process that runs it: `python -m tests.bench.dbos_steps`.

DBOS is a library: the process that starts a workflow runs it, so caller and worker are one process here, which is how
DBOS is fastest. It reads a line `steps at_once count` for each round, and writes the seconds as one line of JSON.
BENCH_DBOS_URL names its database.
"""

import asyncio
import json
import os
import sys
from functools import partial

from dbos import DBOS

from tests.bench.measure import time_calls
from tests.bench.models import DBOS_URL, ORDER, Order, Receipt


@DBOS.step(retries_allowed=True, interval_seconds=2, max_attempts=4)
async def first(order: Order) -> Receipt:
    return Receipt(number=order.number)


@DBOS.step(retries_allowed=True, interval_seconds=2, max_attempts=4)
async def second(order: Order) -> Receipt:
    return Receipt(number=order.number)


@DBOS.step(retries_allowed=True, interval_seconds=2, max_attempts=4)
async def third(order: Order) -> Receipt:
    return Receipt(number=order.number)


STEPS = [first, second, third]


@DBOS.workflow()
async def run(order: Order, steps: int) -> list[Receipt]:
    """Run the first steps, one after another."""
    return [await step(order) for step in STEPS[:steps]]


async def serve() -> None:
    """Make the rounds that the benchmark asks for, until it closes the pipe."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        steps, at_once, count = map(int, line.split())
        wall, latencies = await time_calls(partial(run, ORDER, steps), at_once=at_once, count=count)
        print(json.dumps([wall, latencies]), flush=True)


if __name__ == "__main__":
    DBOS(config={"name": "bench", "system_database_url": os.environ[DBOS_URL], "log_level": "WARNING"})
    DBOS.launch()
    print("ready", flush=True)
    asyncio.run(serve())
    # Its threads would go on.
    os._exit(0)
