"""Time rounds of runs, and put rounds together into figures."""

import asyncio
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil
from pydantic import BaseModel

from tests.bench.contenders import Contender

ROUND_LIMIT = 120.0


@dataclass(frozen=True)
class Round:
    """What one contender did in one round: seconds, all of them."""

    wall: float
    latencies: list[float]
    worker_cpu: float
    client_cpu: float
    server_cpu: float

    @property
    def rate(self) -> float:
        """Runs in a second."""
        return len(self.latencies) / self.wall


class Figures(BaseModel):
    """One contender in one case. Medians of rounds; percentiles over the runs of all rounds."""

    contender: str
    steps: int
    at_once: int
    runs_per_s: float
    p50_ms: float
    p99_ms: float
    worker_cpu_ms: float
    client_cpu_ms: float
    server_cpu_ms: float


class Comparison(BaseModel):
    """Both contenders in one case. The ratio of runs/s is taken in each round; its median and range are kept."""

    redrive: Figures
    plain: Figures
    ratio: float
    ratio_low: float
    ratio_high: float


async def time_round(contender: Contender, *, steps: int, at_once: int, runs: int) -> Round:
    """Make the runs, so many at once, and measure."""
    latencies: list[float] = []
    tickets = iter(range(runs))
    before = _cpu(contender)
    began = time.perf_counter()
    async with asyncio.timeout(ROUND_LIMIT), asyncio.TaskGroup() as tasks:
        for _ in range(min(at_once, runs)):
            tasks.create_task(_caller(contender, steps, tickets, latencies))
    wall = time.perf_counter() - began
    used = [now - then for now, then in zip(_cpu(contender), before, strict=True)]
    return Round(wall, latencies, *used)


async def _caller(contender: Contender, steps: int, tickets: Iterator[int], latencies: list[float]) -> None:
    for _ in tickets:
        began = time.perf_counter()
        await contender.run(steps)
        latencies.append(time.perf_counter() - began)


def _cpu(contender: Contender) -> list[float]:
    processes = (contender.worker, psutil.Process(os.getpid()), contender.server)
    return [sum(process.cpu_times()[:2]) for process in processes]


def compare(steps: int, at_once: int, redrive: Sequence[Round], plain: Sequence[Round]) -> Comparison:
    """Compare the rounds of one case, pair by pair."""
    ratios = [ours.rate / theirs.rate for ours, theirs in zip(redrive, plain, strict=True)]
    return Comparison(
        redrive=_figures("redrive", steps, at_once, redrive),
        plain=_figures("plain", steps, at_once, plain),
        ratio=statistics.median(ratios),
        ratio_low=min(ratios),
        ratio_high=max(ratios),
    )


def _figures(contender: str, steps: int, at_once: int, rounds: Sequence[Round]) -> Figures:
    latencies = sorted(latency for one in rounds for latency in one.latencies)
    per_run = 1000 * len(rounds) / len(latencies)
    return Figures(
        contender=contender,
        steps=steps,
        at_once=at_once,
        runs_per_s=statistics.median(one.rate for one in rounds),
        p50_ms=1000 * _percentile(latencies, 0.50),
        p99_ms=1000 * _percentile(latencies, 0.99),
        worker_cpu_ms=per_run * statistics.median(one.worker_cpu for one in rounds),
        client_cpu_ms=per_run * statistics.median(one.client_cpu for one in rounds),
        server_cpu_ms=per_run * statistics.median(one.server_cpu for one in rounds),
    )


def _percentile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))]
