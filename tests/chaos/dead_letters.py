"""Kill workers and PostgreSQL under dying runs, then under their replays: `python -m tests.chaos.dead_letters`.

Ends with 0 when every run has one record, was replayed once and succeeded, and with 1 and what is wrong otherwise.
"""

import argparse
import asyncio
import logging
import os
import random
import sys
from collections.abc import Callable

from redrive.errors import StackError
from redrive.logs import configure_logging
from tests.chaos import modules  # noqa: F401  # a caller that has the code needs no worker to start a run
from tests.chaos.case import clock
from tests.chaos.scene import Scene, scene

TIME_LIMIT = 720.0
SHOWN = 20


def main() -> None:
    """Run it as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.dead_letters", description=__doc__.partition(":")[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--callers", type=int, default=20, help="who send replays at once")
    parser.add_argument("--copies", type=int, default=4, help="how many of them send the same replay")
    parser.add_argument("--trouble", type=float, default=120.0, help="at most so many seconds of trouble in each half")
    parser.add_argument("--limit", type=float, default=TIME_LIMIT, help="give up after so many seconds")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    words = parser.parse_args()
    configure_logging("error")
    # The SDK leaves a future behind for each order that got no answer in time.
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
    print(f"seed {words.seed}, {words.runs} runs, {words.workers} workers")
    async with (
        asyncio.timeout(words.limit),
        scene(runs=words.runs, workers=words.workers, seed=words.seed) as stage,
    ):
        return await _die(stage, words.trouble) or await _replay(stage, words)


async def _die(stage: Scene, limit: float) -> list[str]:
    stage.sink.refusing = True
    seconds = clock()
    async with stage.trouble.going_on(limit):
        await stage.case.start_all()
        print(f"{stage.case.count} runs started in {seconds():.1f} s; asked again {stage.case.asked_again} times")
        await stage.case.until_status("pending", stage.case.count, progress("records", seconds))
    print(f"{stage.case.count} records after {seconds():.1f} s; {stage.trouble.damage}")
    return await stage.case.dead_violations()


async def _replay(stage: Scene, words: argparse.Namespace) -> list[str]:
    stage.sink.refusing = False
    seconds = clock()
    async with stage.trouble.going_on(words.trouble):
        await stage.case.replay_all(callers=words.callers, copies=words.copies)
        print(
            f"{sum(map(len, stage.case.answers.values()))} replays answered in {seconds():.1f} s; "
            f"asked again {stage.case.asked_again} times"
        )
        ended = await stage.case.results()
        await stage.case.until_status("replayed", stage.case.count, progress("replayed", seconds))
    print(f"all runs ended after {seconds():.1f} s; {stage.trouble.damage}; {stage.case.duplicates} repeated effects")
    return await stage.case.replayed_violations(ended)


def progress(what: str, seconds: Callable[[], float]) -> Callable[[int], None]:
    """Return a function that says on stderr how far it is, every ten seconds."""
    shown = -10.0

    def show(count: int) -> None:
        nonlocal shown
        if seconds() - shown >= 10:
            shown = seconds()
            print(f"  {shown:.0f} s: {count} {what}", file=sys.stderr, flush=True)

    return show


if __name__ == "__main__":
    main()
