"""Kill workers, console and PostgreSQL under a bulk replay of ten thousand dead letters: `python -m tests.chaos.bulk`.

Ends with 0 when every dead letter was replayed once and is accounted for, and with 1 and what is wrong otherwise.
"""

import argparse
import asyncio
import logging
import os
import random
import sys

from redrive.errors import StackError
from redrive.logs import configure_logging
from tests.chaos import modules  # noqa: F401  # a caller that has the code needs no worker to start a run
from tests.chaos.bulk_case import bulk_case
from tests.chaos.case import clock
from tests.chaos.dead_letters import SHOWN, progress
from tests.chaos.scene import Scene, scene

TIME_LIMIT = 3600.0


def main() -> None:
    """Run it as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.bulk", description=__doc__.partition(":")[0])
    parser.add_argument("--letters", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--parallelism", type=int, default=20, help="how many may be under way at once")
    parser.add_argument("--trouble", type=float, default=120.0, help="at most so many seconds of trouble")
    parser.add_argument("--limit", type=float, default=TIME_LIMIT, help="give up after so many seconds")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    words = parser.parse_args()
    configure_logging("error")
    # The SDK leaves a future behind for each call that got no answer in time.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    try:
        problems = asyncio.run(_bounded(words))
    except (StackError, TimeoutError) as error:
        problems = [f"not done: {type(error).__name__} {error}"]
    for problem in problems[:SHOWN]:
        print(f"  VIOLATION: {problem}")
    print(f"{len(problems)} violations" if problems else "no violation")
    sys.stdout.flush()
    # Interpreter shutdown with Temporal's native threads alive can crash; everything is stopped by now.
    os._exit(1 if problems else 0)


async def _bounded(words: argparse.Namespace) -> list[str]:
    print(f"seed {words.seed}, {words.letters} dead letters, {words.workers} workers", flush=True)
    async with (
        asyncio.timeout(words.limit),
        scene(runs=words.letters, workers=words.workers, seed=words.seed, console=True) as stage,
    ):
        await _die(stage)
        return await _replay(stage, words.trouble, words.parallelism)


async def _die(stage: Scene) -> None:
    stage.sink.refusing = True
    seconds = clock()
    await stage.case.start_all()
    await stage.case.until_status("pending", stage.case.count, progress("records", seconds))
    print(f"{stage.case.count} dead letters after {seconds():.1f} s", flush=True)


async def _replay(stage: Scene, limit: float, parallelism: int) -> list[str]:
    stage.sink.refusing = False
    async with bulk_case(stage.case, stage.console) as bulk:
        seconds = clock()
        async with stage.trouble.going_on(limit):
            await bulk.start(parallelism)
            await bulk.until_ended(progress("applied", seconds))
        took = seconds()
        rate = stage.case.count / took
        print(
            f"done after {took:.1f} s ({rate:.1f} a second); {stage.trouble.damage}; {stage.case.duplicates} repeated"
        )
        return await bulk.violations()


if __name__ == "__main__":
    main()
