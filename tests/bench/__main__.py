"""Measure everything that the page shows, and write it there: `python -m tests.bench` (10 minutes; --quick: 2).

Everything on one machine, one after the other, each part on servers of its own.
"""

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass

from redrive.errors import StackError
from redrive.logs import configure_logging
from tests.bench import cost, dead_letters, keys, runs, starts
from tests.bench.page import PAGE, save
from tests.bench.program import end, show
from tests.bench.report import Conditions, Report


@dataclass(frozen=True)
class Amount:
    """How much is measured."""

    rounds: int
    runs: int
    starts: int
    burst: int
    cost: int


WHOLE = Amount(rounds=5, runs=150, starts=300, burst=2000, cost=100)
QUICK = Amount(rounds=2, runs=50, starts=100, burst=500, cost=40)


async def measure(amount: Amount) -> Report:
    """Run all benchmarks."""
    conditions = Conditions(rounds=amount.rounds, runs=amount.runs)
    return Report(
        conditions=conditions,
        runs=await runs.bench(amount.runs, amount.rounds),
        letters=await dead_letters.bench(amount.runs, amount.rounds),
        keys=await keys.bench(amount.starts, amount.rounds),
        starts=await starts.bench(amount.runs, amount.rounds, amount.burst),
        cost=await cost.bench(amount.cost),
    )


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__.partition(":")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and runs; only print the figures")
    parser.add_argument("--write", action="store_true", help="write the figures of a quick measurement to the page too")
    words = parser.parse_args()
    configure_logging("warning")
    began = time.monotonic()
    try:
        report = asyncio.run(measure(QUICK if words.quick else WHOLE))
    except StackError as error:
        end(f"bench: {error}")
    show(
        *runs.tables(report.runs),
        *dead_letters.tables(report.letters),
        *keys.way_tables(report.keys, "Starts with a key", keys.WAYS[0]),
        *starts.tables(report.starts),
        *cost.tables(report.cost),
    )
    print(f"{report.conditions.sentence} It took {time.monotonic() - began:.0f} s.")
    if words.write or not words.quick:
        save(report)
        print(f"Written to {PAGE} and the files beside it.", file=sys.stderr)
    end()


if __name__ == "__main__":
    main()
