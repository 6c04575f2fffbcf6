"""Compare runs with the same steps as a plain Temporal workflow: `python -m tests.bench.runs`.

Both contenders use the same server in the same minutes, in turns, because the speed of a machine changes from one
minute to the next and a ratio of neighbours does not.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from redrive.errors import StackError
from redrive.logs import configure_logging
from tests.bench.contenders import Contender, contenders
from tests.bench.measure import Comparison, Figures, Round, compare, time_round

CASES = [(steps, at_once) for steps in (1, 3) for at_once in (1, 50)]
WARM_UP = 20
TIME_LIMIT = 1200.0


def main() -> None:
    """Run the benchmark as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.runs", description=__doc__.partition(":")[0])
    parser.add_argument(
        "--runs", type=_count, default=150, help="runs of a contender in a round (default 150; one at once: a fifth)"
    )
    parser.add_argument("--rounds", type=_count, default=5, help="rounds of each case (default 5)")
    parser.add_argument(
        "--plain",
        choices=("sandbox", "bare"),
        default="sandbox",
        help="how the plain contender runs workflows: in Temporal's sandbox (as it comes), or bare, as Redrive does",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    words = parser.parse_args()
    configure_logging("warning")
    code = 0
    try:
        comparisons = asyncio.run(bench(words.runs, words.rounds, words.plain))
        print(_as_json(comparisons)) if words.json else _show(comparisons)
    except StackError as error:
        print(f"bench: {error}", file=sys.stderr)
        code = 1
    except TimeoutError:
        print(f"bench: not done after {TIME_LIMIT:.0f} s; try fewer --runs or --rounds", file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Interpreter shutdown with Temporal's native threads alive can crash; everything is stopped by now.
    os._exit(code)


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 10_000:
        raise argparse.ArgumentTypeError("a number from 1 to 10000 is needed")
    return number


async def bench(runs: int, rounds: int, plain_runner: str) -> list[Comparison]:
    """Measure every case on a stack of its own."""
    async with asyncio.timeout(TIME_LIMIT), contenders(plain_runner) as (redrive, plain):
        return [
            await _case(redrive, plain, steps=steps, at_once=at_once, runs=runs, rounds=rounds)
            for steps, at_once in CASES
        ]


async def _case(
    redrive: Contender, plain: Contender, *, steps: int, at_once: int, runs: int, rounds: int
) -> Comparison:
    """Let the contenders take turns; who goes first changes from round to round."""
    runs = runs if at_once > 1 else max(1, runs // 5)
    taken: dict[str, list[Round]] = {redrive.name: [], plain.name: []}
    for contender in (redrive, plain):
        await time_round(contender, steps=steps, at_once=at_once, runs=max(WARM_UP, at_once))
    for number in range(rounds):
        print(f"{steps} step(s), {at_once} at once: round {number + 1} of {rounds}", file=sys.stderr)
        for contender in (redrive, plain) if number % 2 else (plain, redrive):
            taken[contender.name].append(await time_round(contender, steps=steps, at_once=at_once, runs=runs))
    return compare(steps, at_once, taken[redrive.name], taken[plain.name])


def _as_json(comparisons: Sequence[Comparison]) -> str:
    cases = [comparison.model_dump() for comparison in comparisons]
    return json.dumps({"cores": os.cpu_count(), "cases": cases}, indent=2)


def _show(comparisons: Sequence[Comparison]) -> None:
    heads = ("runs/s", "p50 ms", "p99 ms", "worker CPU ms", "client CPU ms", "server CPU ms")
    table = Table("steps", "at once", "as", title=f"Redrive and plain Temporal, {os.cpu_count()} cores; CPU per run")
    for head in (*heads, "ratio of runs/s"):
        table.add_column(head, justify="right")
    for case in comparisons:
        ratio = f"{case.ratio:.2f} ({case.ratio_low:.2f}-{case.ratio_high:.2f})"
        table.add_row(*_cells(case.redrive), ratio)
        table.add_row(*_cells(case.plain), "", end_section=True)
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def _cells(figures: Figures) -> list[str]:
    numbers = (
        figures.runs_per_s,
        figures.p50_ms,
        figures.p99_ms,
        figures.worker_cpu_ms,
        figures.client_cpu_ms,
        figures.server_cpu_ms,
    )
    return [str(figures.steps), str(figures.at_once), figures.contender, *(f"{number:.1f}" for number in numbers)]


if __name__ == "__main__":
    main()
