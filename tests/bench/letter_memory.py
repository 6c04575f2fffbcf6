"""Memory of a worker with many parked runs: what one costs while it is cached, and where it ends."""

import asyncio
import sys
import time
from pathlib import Path

from pydantic import BaseModel

from tests.bench.letter_contenders import Parking
from tests.bench.letter_rounds import side_by_side, until
from tests.bench.letter_steps import Errand

BATCH = 200
AT_ONCE = 50
SETTLING = 2.0


class Memory(BaseModel):
    """Resident memory, in MiB. Growth is per parked run (with its dead letter), while the cache was not full."""

    parked: int
    seconds: float
    empty_mib: float
    full_mib: float
    per_cached_run_mib: float
    samples: dict[int, float]


async def measure_memory(contender: Parking, folder: Path, *, runs: int, limit: float, cached: int) -> Memory:
    """Park runs in batches until there are enough or the time is over."""
    began = time.perf_counter()
    samples = {0: _resident(contender)}
    while (done := max(samples)) < runs and time.perf_counter() - began < limit:
        batch = [Errand(number=number, folder=folder) for number in range(done, min(done + BATCH, runs))]
        await side_by_side(AT_ONCE, batch, contender.start)
        await until(contender.parked, folder, batch[-1].number + 1)
        samples[batch[-1].number + 1] = _resident(contender)
        print(f"memory: {max(samples)} parked, {samples[max(samples)]:.0f} MiB", file=sys.stderr)
    await asyncio.sleep(SETTLING)
    samples[max(samples)] = _resident(contender)
    return Memory(
        parked=max(samples),
        seconds=time.perf_counter() - began,
        empty_mib=samples[0],
        full_mib=samples[max(samples)],
        per_cached_run_mib=_growth(samples, cached),
        samples=samples,
    )


def _growth(samples: dict[int, float], cached: int) -> float:
    """Return what a run adds between the first batch, which loads code, too, and the last one that fits the cache."""
    fitting = sorted(number for number in samples if 0 < number <= cached)
    if len(fitting) < 2:
        return 0.0
    return (samples[fitting[-1]] - samples[fitting[0]]) / (fitting[-1] - fitting[0])


def _resident(contender: Parking) -> float:
    resident: int = contender.worker.memory_info().rss
    return resident / 2**20
