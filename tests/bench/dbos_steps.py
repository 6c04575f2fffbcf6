"""The steps as a DBOS workflow, and the process that runs it: `python -m tests.bench.dbos_steps`.

DBOS is a library: the process that starts a workflow runs it, so caller and worker are one process here, which is how
DBOS is fastest. BENCH_DBOS_URL names its database.
"""

import asyncio
import os
from functools import partial

from dbos import DBOS

from tests.bench.measure import serve_rounds
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


if __name__ == "__main__":
    DBOS(config={"name": "bench", "system_database_url": os.environ[DBOS_URL], "log_level": "WARNING"})
    DBOS.launch()
    asyncio.run(serve_rounds(partial(run, ORDER)))
    # Its threads would go on.
    os._exit(0)
