"""Time rounds in which runs die and are replayed, and put rounds together into figures."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil
from pydantic import BaseModel

from tests.bench.letter_contenders import Parking
from tests.bench.letter_steps import MENDED_FILE, STEPS_FILE, Errand

T = TypeVar("T")

ROUND_LIMIT = 240.0
POLL = 0.02


@dataclass(frozen=True)
class LetterRound:
    """What one contender did in one round: seconds, all of them."""

    runs: int
    parking: float
    replaying: float
    command_to_step: list[float]
    worker_cpu: float
    server_cpu: float


class LetterFigures(BaseModel):
    """One contender in one case. Medians of rounds; percentiles over the runs of all rounds."""

    contender: str
    parked_per_s: float
    replays_per_s: float
    order_to_step_p50_ms: float
    order_to_step_p99_ms: float
    worker_cpu_ms: float
    server_cpu_ms: float


class LetterComparison(BaseModel):
    """Both contenders in one case. Ratios are taken in each round: median, lowest, highest."""

    at_once: int
    redrive: LetterFigures
    plain: LetterFigures
    parked_ratio: tuple[float, float, float]
    replays_ratio: tuple[float, float, float]


async def time_letters(
    contender: Parking, server: psutil.Process, folder: Path, *, at_once: int, runs: int
) -> LetterRound:
    """Let the runs die, so many at once; mend the cause; replay them all; measure."""
    async with asyncio.timeout(ROUND_LIMIT):
        before = _cpu(contender.worker, server)
        errands = [Errand(number=number, folder=folder) for number in range(runs)]
        began = time.perf_counter()
        ids = await side_by_side(at_once, errands, contender.start)
        await until(contender.parked, folder, runs)
        parking = time.perf_counter() - began
        (folder / MENDED_FILE).touch()
        ordered: dict[int, float] = {}

        async def replay(errand: Errand) -> None:
            ordered[errand.number] = time.time()
            await contender.command(folder, ids[errand.number])
            await contender.ended(ids[errand.number])

        began = time.perf_counter()
        await side_by_side(at_once, errands, replay)
        await until(contender.settled, folder, runs)
        replaying = time.perf_counter() - began
        used = [now - then for now, then in zip(_cpu(contender.worker, server), before, strict=True)]
        return LetterRound(runs, parking, replaying, _order_to_step(folder, ordered), *used)


def _order_to_step(folder: Path, ordered: dict[int, float]) -> list[float]:
    """Return how long after its command each step ran again."""
    lines = [line.split() for line in (folder / STEPS_FILE).read_text().splitlines()]
    # In the order of time: the last run of a step is the one that was ordered.
    ran = {int(number): float(at) for number, at in lines}
    return [ran[number] - at for number, at in ordered.items()]


async def until(count: Callable[[Path], Awaitable[int]], folder: Path, wanted: int) -> None:
    """Wait until the count is what is wanted."""
    while await count(folder) < wanted:  # noqa: ASYNC110  # it happens in other processes
        await asyncio.sleep(POLL)


async def side_by_side(width: int, errands: Sequence[Errand], work: Callable[[Errand], Awaitable[T]]) -> list[T]:
    """Do the work for all, so many at once, and return the results in order."""
    results: dict[int, T] = {}
    waiting = iter(errands)

    async def worker() -> None:
        for errand in waiting:
            results[errand.number] = await work(errand)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(width, len(errands))):
            tasks.create_task(worker())
    return [results[errand.number] for errand in errands]


def _cpu(*processes: psutil.Process) -> list[float]:
    return [sum(process.cpu_times()[:2]) for process in processes]


def compare_letters(at_once: int, redrive: Sequence[LetterRound], plain: Sequence[LetterRound]) -> LetterComparison:
    """Compare the rounds of one case, pair by pair."""
    pairs = list(zip(redrive, plain, strict=True))
    return LetterComparison(
        at_once=at_once,
        redrive=_figures("redrive", redrive),
        plain=_figures("plain", plain),
        parked_ratio=_spread([theirs.parking / ours.parking for ours, theirs in pairs]),
        replays_ratio=_spread([theirs.replaying / ours.replaying for ours, theirs in pairs]),
    )


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return statistics.median(values), min(values), max(values)


def _figures(contender: str, rounds: Sequence[LetterRound]) -> LetterFigures:
    waits = sorted(wait for one in rounds for wait in one.command_to_step)
    return LetterFigures(
        contender=contender,
        parked_per_s=statistics.median(one.runs / one.parking for one in rounds),
        replays_per_s=statistics.median(one.runs / one.replaying for one in rounds),
        order_to_step_p50_ms=1000 * waits[len(waits) // 2],
        order_to_step_p99_ms=1000 * waits[min(len(waits) - 1, int(0.99 * len(waits)))],
        worker_cpu_ms=1000 * statistics.median(one.worker_cpu / one.runs for one in rounds),
        server_cpu_ms=1000 * statistics.median(one.server_cpu / one.runs for one in rounds),
    )
