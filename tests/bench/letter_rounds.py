"""Time rounds in which runs fail and are replayed, and put rounds together into figures."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from tests.bench.contenders import PLAIN, REDRIVE, Stage
from tests.bench.letter_contenders import OURS, InBulk, Parking
from tests.bench.letter_steps import FIXED_FILE, STEPS_FILE, Errand
from tests.bench.measure import Cpu, Spread, percentile, ratios_of, used

T = TypeVar("T")

ROUND_LIMIT = 240.0
POLL = 0.02


@dataclass(frozen=True)
class LetterRound:
    """What one contender did in one round, in seconds."""

    runs: int
    parking: float
    replaying: float
    command_to_step: list[float]
    cpu: Cpu


class LetterFigures(BaseModel):
    """One contender in one case: medians of rounds; percentiles over all rounds; ratios to the others."""

    contender: str
    parked_per_s: float
    replays_per_s: float
    command_to_step_p50_ms: float | None
    command_to_step_p99_ms: float | None
    cpu_ms: dict[str, float]
    parked_ratios: dict[str, Spread]
    replays_ratios: dict[str, Spread]


async def time_letters(on: Stage, contender: Parking, folder: Path, *, at_once: int, runs: int) -> LetterRound:
    """Let the runs fail, so many at once; fix the cause; replay them all; measure."""
    owner = REDRIVE if contender.name in OURS else PLAIN
    async with asyncio.timeout(ROUND_LIMIT):
        before = on.cpu(owner)
        errands = [Errand(number=number, folder=folder) for number in range(runs)]
        began = time.perf_counter()
        ids = await side_by_side(at_once, errands, contender.start)
        await until(contender.parked, folder, runs)
        parking = time.perf_counter() - began
        (folder / FIXED_FILE).touch()
        began = time.perf_counter()
        sent = await _replay(contender, folder, dict(zip(errands, ids, strict=True)), at_once)
        await until(contender.settled, folder, runs)
        replaying = time.perf_counter() - began
        return LetterRound(runs, parking, replaying, _command_to_step(folder, sent), used(before, on.cpu(owner)))


async def _replay(contender: Parking, folder: Path, ids: dict[Errand, str], at_once: int) -> dict[int, float]:
    """Replay all, each until its run has ended; return when each command was sent. A bulk operation sends its own."""
    sent: dict[int, float] = {}

    async def replay(errand: Errand) -> None:
        if not isinstance(contender, InBulk):
            sent[errand.number] = time.time()
            await contender.command(folder, ids[errand])
        await contender.ended(ids[errand])

    if isinstance(contender, InBulk):
        await contender.replay_all(folder)
    await side_by_side(at_once, list(ids), replay)
    return sent


def _command_to_step(folder: Path, sent: dict[int, float]) -> list[float]:
    """Return how long after its command each step ran again."""
    lines = [line.split() for line in (folder / STEPS_FILE).read_text().splitlines()]
    # In the order of time: the last run of a step is the one after its command.
    ran = {int(number): float(at) for number, at in lines}
    return [ran[number] - at for number, at in sent.items()]


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


def letter_figures(name: str, taken: dict[str, list[LetterRound]]) -> LetterFigures:
    """Put a contender's rounds together, and compare them with the others' of the same rounds."""
    rounds = taken[name]
    waits = sorted(wait for one in rounds for wait in one.command_to_step)
    parked = {other: [one.runs / one.parking for one in theirs] for other, theirs in taken.items()}
    replays = {other: [one.runs / one.replaying for one in theirs] for other, theirs in taken.items()}
    return LetterFigures(
        contender=name,
        parked_per_s=statistics.median(parked[name]),
        replays_per_s=statistics.median(replays[name]),
        command_to_step_p50_ms=1000 * percentile(waits, 0.50) if waits else None,
        command_to_step_p99_ms=1000 * percentile(waits, 0.99) if waits else None,
        cpu_ms={who: 1000 * statistics.median(one.cpu[who] / one.runs for one in rounds) for who in rounds[0].cpu},
        parked_ratios=ratios_of(name, parked),
        replays_ratios=ratios_of(name, replays),
    )
