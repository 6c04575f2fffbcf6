"""Compare dead letters with a plain workflow that parks and is signalled: `python -m tests.bench.dead_letters`.

Both contenders use the same server in the same minutes, in turns.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import asyncpg
from rich.console import Console
from rich.table import Table

from redrive.errors import StackError
from redrive.logs import configure_logging
from tests.bench.contenders import PLAIN, REDRIVE, Stage, stage
from tests.bench.letter_contenders import Parking, WithDeadLetters, WithSignals
from tests.bench.letter_rounds import LetterComparison, LetterFigures, LetterRound, compare_letters, time_letters
from tests.conftest import owner_url

TIME_LIMIT = 1200.0
WARM_UP = 20


def main() -> None:
    """Run the benchmark as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.dead_letters", description=__doc__.partition(":")[0])
    parser.add_argument("--runs", type=int, default=150, help="runs of a contender in a round (one at once: a tenth)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each case")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    words = parser.parse_args()
    configure_logging("warning")
    code = 0
    try:
        comparisons = asyncio.run(bench(words.runs, words.rounds))
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


async def bench(runs: int, rounds: int) -> list[LetterComparison]:
    """Measure on a stack of its own."""
    async with asyncio.timeout(TIME_LIMIT), stage("tests.bench.letter_steps") as on:
        records = await asyncpg.connect(owner_url(on.info))
        redrive = WithDeadLetters(on.redrive, records, on.workers[REDRIVE])
        plain = WithSignals(on.client, on.workers[PLAIN])
        cases = [
            await _case(on, redrive, plain, at_once=at_once, runs=count, rounds=rounds)
            for at_once, count in ((1, max(1, runs // 10)), (50, runs))
        ]
        await records.close()
        return cases


async def _case(
    on: Stage, redrive: Parking, plain: Parking, *, at_once: int, runs: int, rounds: int
) -> LetterComparison:
    """Let the contenders take turns; who goes first changes from round to round."""
    taken: dict[str, list[LetterRound]] = {redrive.name: [], plain.name: []}
    for number in range(rounds + 1):
        count = runs if number else max(WARM_UP, at_once)
        print(f"{at_once} at once: round {number} of {rounds}", file=sys.stderr)
        for contender in (redrive, plain) if number % 2 else (plain, redrive):
            folder = _folder(on, f"{contender.name}-{at_once}-{number}")
            measured = await time_letters(contender, on.server, folder, at_once=at_once, runs=count)
            if number:
                taken[contender.name].append(measured)
    return compare_letters(at_once, taken[redrive.name], taken[plain.name])


def _folder(on: Stage, name: str) -> Path:
    folder = on.folder / "rounds" / name
    folder.mkdir(parents=True)
    return folder


def _as_json(comparisons: Sequence[LetterComparison]) -> str:
    cases = [comparison.model_dump() for comparison in comparisons]
    return json.dumps({"cores": os.cpu_count(), "cases": cases}, indent=2)


def _show(comparisons: Sequence[LetterComparison]) -> None:
    heads = ("parked/s", "replays/s", "command to step p50 ms", "p99 ms", "worker CPU ms", "server CPU ms")
    table = Table("at once", "as", title=f"Dead letters and replays, {os.cpu_count()} cores; CPU per run")
    for head in (*heads, "ratio parked/s", "ratio replays/s"):
        table.add_column(head, justify="right")
    for case in comparisons:
        ratios = [
            f"{middle:.2f} ({low:.2f}-{high:.2f})" for middle, low, high in (case.parked_ratio, case.replays_ratio)
        ]
        table.add_row(str(case.at_once), *_cells(case.redrive), *ratios)
        table.add_row(str(case.at_once), *_cells(case.plain), "", "", end_section=True)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)


def _cells(figures: LetterFigures) -> list[str]:
    numbers = (
        figures.parked_per_s,
        figures.replays_per_s,
        figures.order_to_step_p50_ms,
        figures.order_to_step_p99_ms,
        figures.worker_cpu_ms,
        figures.server_cpu_ms,
    )
    return [figures.contender, *(f"{number:.1f}" for number in numbers)]


if __name__ == "__main__":
    main()
