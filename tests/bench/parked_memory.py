"""Measure the memory of a worker with many parked runs: `python -m tests.bench.parked_memory`.

What one costs while it is cached, and where it ends. Not part of `make bench`: ten thousand take a quarter of an hour.
"""

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path

import asyncpg
from pydantic import BaseModel

from redrive.errors import StackError
from redrive.logs import configure_logging
from redrive.settings import Settings
from tests.bench.contenders import REDRIVE, stage
from tests.bench.letter_contenders import Parking, WithDeadLetters
from tests.bench.letter_rounds import side_by_side, until
from tests.bench.letter_steps import Errand
from tests.conftest import owner_url

BATCH = 200
AT_ONCE = 50
SETTLING = 2.0
CACHED = Settings.model_fields["max_cached_runs"].default


class Memory(BaseModel):
    """Resident memory, in MiB. Growth is per parked run, while the cache was not full."""

    parked: int
    seconds: float
    empty_mib: float
    full_mib: float
    per_cached_run_mib: float
    samples: dict[int, float]

    @property
    def sentence(self) -> str:
        """The figures in words."""
        return (
            f"Memory of a worker: {self.empty_mib:.0f} MiB empty, {self.full_mib:.0f} MiB with {self.parked} "
            f"parked runs after {self.seconds:.0f} s "
            f"({self.per_cached_run_mib * 1024:.0f} KiB for each of the first {CACHED}, which are cached)"
        )


def main() -> None:
    """Run it as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.parked_memory", description=__doc__.partition(":")[0])
    parser.add_argument("--parked", type=int, default=10_000, help="runs to park")
    parser.add_argument("--limit", type=float, default=1800.0, help="park no more after so many seconds")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a sentence")
    words = parser.parse_args()
    configure_logging("warning")
    code = 0
    try:
        memory = asyncio.run(_measure(words.parked, words.limit))
        print(memory.model_dump_json(indent=2) if words.json else memory.sentence)
    except StackError as error:
        print(f"bench: {error}", file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Interpreter shutdown with Temporal's native threads alive can crash; everything is stopped by now.
    os._exit(code)


async def _measure(parked: int, limit: float) -> Memory:
    async with stage("tests.bench.letter_steps") as on:
        records = await asyncpg.connect(owner_url(on.info))
        contender = WithDeadLetters(on.redrive, records, on.workers[REDRIVE])
        folder = on.folder / "memory"
        folder.mkdir()
        memory = await measure_memory(contender, folder, runs=parked, limit=limit, cached=CACHED)
        await records.close()
        return memory


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


if __name__ == "__main__":
    main()
