"""Compare dead letters with what one would write on Temporal: `python -m tests.bench.dead_letters`.

All contenders use the same servers in the same minutes, in turns.
"""

import argparse
import asyncio
import sys
from pathlib import Path

import asyncpg
from pydantic import BaseModel, TypeAdapter
from rich.table import Table

from tests.bench.contenders import PLAIN, REDRIVE, Stage, stage
from tests.bench.letter_contenders import (
    HAND_WRITTEN,
    HandWritten,
    InBulk,
    Parking,
    SignalOnly,
    Unanswered,
    WithDeadLetters,
)
from tests.bench.letter_rounds import LetterFigures, LetterRound, letter_figures, time_letters
from tests.bench.letter_steps import TABLE
from tests.bench.measure import in_turn
from tests.bench.program import count, run_program, shown
from tests.conftest import owner_url

TIME_LIMIT = 1200.0
WARM_UP = 20


class LetterCase(BaseModel):
    """All contenders in one case."""

    at_once: int
    figures: list[LetterFigures]


CASE_LIST = TypeAdapter(list[LetterCase])


def main() -> None:
    """Run the benchmark as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.dead_letters", description=__doc__.partition(":")[0])
    parser.add_argument("--runs", type=count, default=150, help="runs of a contender in a round (one at once: a tenth)")
    parser.add_argument("--rounds", type=count, default=5, help="rounds of each case")
    run_program(parser, lambda words: bench(words.runs, words.rounds), CASE_LIST, tables)


async def bench(runs: int, rounds: int) -> list[LetterCase]:
    """Measure on a stack of its own."""
    async with asyncio.timeout(TIME_LIMIT), stage("tests.bench.letter_steps") as on:
        records = await asyncpg.connect(owner_url(on.info))
        await records.execute(TABLE)
        everyone: list[Parking] = [
            WithDeadLetters(on.redrive, records, on.workers[REDRIVE]),
            Unanswered(on.redrive, records, on.workers[REDRIVE]),
            HandWritten(on.client, records, on.workers[PLAIN]),
            SignalOnly(on.client, on.workers[PLAIN]),
        ]
        bulk = InBulk(on.redrive, records, on.workers[REDRIVE])
        cases = [
            await _case(on, everyone, at_once=1, runs=max(1, runs // 10), rounds=rounds),
            await _case(on, [*everyone, bulk], at_once=50, runs=runs, rounds=rounds),
        ]
        await records.close()
        return cases


async def _case(on: Stage, everyone: list[Parking], *, at_once: int, runs: int, rounds: int) -> LetterCase:
    """Let the contenders take turns; who goes first changes from round to round."""
    taken: dict[str, list[LetterRound]] = {contender.name: [] for contender in everyone}
    for number in range(rounds + 1):
        count = runs if number else max(WARM_UP, at_once)
        print(f"{at_once} at once: round {number} of {rounds}", file=sys.stderr)
        for contender in in_turn(everyone, number):
            folder = _folder(on, f"{contender.name.replace(' ', '-')}-{at_once}-{number}")
            measured = await time_letters(on, contender, folder, at_once=at_once, runs=count)
            if number:
                taken[contender.name].append(measured)
    return LetterCase(at_once=at_once, figures=[letter_figures(name, taken) for name in taken])


def _folder(on: Stage, name: str) -> Path:
    folder = on.folder / "rounds" / name
    folder.mkdir(parents=True)
    return folder


def tables(cases: list[LetterCase]) -> list[Table]:
    """Return the figures as tables."""
    heads = ("parked/s", "replays/s", "command to step p50 ms", "p99 ms", "worker", "Temporal", "PostgreSQL")
    table = Table("at once", "as", title="Dead letters and replays; CPU in ms per run")
    for head in (*heads, "parked/s of hand-written", "replays/s of hand-written"):
        table.add_column(head, justify="right")
    for case in cases:
        for each in case.figures:
            waits = [
                f"{wait:.1f}" if wait else "-" for wait in (each.command_to_step_p50_ms, each.command_to_step_p99_ms)
            ]
            cpu = (each.cpu_ms[who] for who in ("worker", "temporal", "postgres"))
            numbers = [*shown(each.parked_per_s, each.replays_per_s), *waits, *shown(*cpu)]
            ratios = [str(spreads.get(HAND_WRITTEN, "")) for spreads in (each.parked_ratios, each.replays_ratios)]
            table.add_row(str(case.at_once), each.contender, *numbers, *ratios)
        table.add_section()
    return [table]


if __name__ == "__main__":
    main()
