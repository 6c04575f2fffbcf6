"""Compare runs with the same steps as a plain Temporal workflow and on DBOS: `python -m tests.bench.runs`.

All contenders use the same servers in the same minutes, in turns.
"""

import argparse
import asyncio
import sys

from pydantic import BaseModel, TypeAdapter
from rich.table import Table

from tests.bench.contenders import DBOS, PLAIN, Contender, contenders
from tests.bench.measure import Figures, Round, figures_of, in_turn
from tests.bench.program import count, run_program, shown

CASES = [(steps, at_once) for steps in (1, 3) for at_once in (1, 50)]
WARM_UP = 20
TIME_LIMIT = 1200.0


class RunCase(BaseModel):
    """All contenders in one case."""

    steps: int
    at_once: int
    figures: list[Figures]


CASE_LIST = TypeAdapter(list[RunCase])


def main() -> None:
    """Run the benchmark as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.runs", description=__doc__.partition(":")[0])
    parser.add_argument(
        "--runs", type=count, default=150, help="runs of a contender in a round (default 150; one at once: a fifth)"
    )
    parser.add_argument("--rounds", type=count, default=5, help="rounds of each case (default 5)")
    parser.add_argument(
        "--plain",
        choices=("sandbox", "bare"),
        default="sandbox",
        help="how the plain contender runs workflows: in Temporal's sandbox (as it comes), or bare, as Redrive does",
    )
    run_program(parser, lambda words: bench(words.runs, words.rounds, words.plain), CASE_LIST, tables)


async def bench(runs: int, rounds: int, plain_runner: str = "sandbox") -> list[RunCase]:
    """Measure every case on a stack of its own."""
    async with asyncio.timeout(TIME_LIMIT), contenders(plain_runner) as everyone:
        return [
            await _case(everyone, steps=steps, at_once=at_once, runs=runs, rounds=rounds) for steps, at_once in CASES
        ]


async def _case(everyone: list[Contender], *, steps: int, at_once: int, runs: int, rounds: int) -> RunCase:
    """Let the contenders take turns; who goes first changes from round to round."""
    runs = runs if at_once > 1 else max(1, runs // 5)
    taken: dict[str, list[Round]] = {contender.name: [] for contender in everyone}
    for contender in everyone:
        await contender.round(steps=steps, at_once=at_once, runs=max(WARM_UP, at_once))
    for number in range(rounds):
        print(f"{steps} step(s), {at_once} at once: round {number + 1} of {rounds}", file=sys.stderr)
        for contender in in_turn(everyone, number):
            taken[contender.name].append(await contender.round(steps=steps, at_once=at_once, runs=runs))
    return RunCase(steps=steps, at_once=at_once, figures=[figures_of(name, taken) for name in taken])


def tables(cases: list[RunCase]) -> list[Table]:
    """Return the figures as tables."""
    table = Table("steps", "at once", "as", title="Runs; CPU in ms per run; ratios of runs/s")
    for head in ("runs/s", "p50 ms", "p99 ms", "worker", "caller", "Temporal", "PostgreSQL", "of plain", "of DBOS"):
        table.add_column(head, justify="right")
    for case in cases:
        for each in case.figures:
            cpu = [each.cpu_ms.get(who, 0.0) for who in ("worker", "caller", "temporal", "postgres")]
            numbers = shown(each.per_s, each.p50_ms, each.p99_ms, *cpu)
            ratios = (str(each.ratios.get(other, "")) for other in (PLAIN, DBOS))
            table.add_row(str(case.steps), str(case.at_once), each.contender, *numbers, *ratios)
        table.add_section()
    return [table]


if __name__ == "__main__":
    main()
