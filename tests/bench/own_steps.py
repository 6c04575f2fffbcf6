"""The steps in a program with its own worker: `python -m tests.bench.own_steps`.

As with DBOS, the process that starts a run also works on it.
"""

import asyncio

from redrive.worker import own_worker
from tests.bench.measure import serve_rounds
from tests.bench.models import ORDER
from tests.bench.modules import FAST_PIPELINES


async def serve() -> None:
    """Make runs of fast steps."""
    async with own_worker() as redrive:

        async def run(steps: int) -> object:
            started = await redrive.start(FAST_PIPELINES[steps], ORDER)
            return await redrive.result(started.run_id)

        await serve_rounds(run)


if __name__ == "__main__":
    asyncio.run(serve())
