"""Time rounds, in which all contenders take turns, and put rounds together into figures.

The speed of a machine changes from one minute to the next; the ratio of neighbours in one round does not.
"""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import psutil
from pydantic import BaseModel

T = TypeVar("T")

WARM_UP = 50
Call = Callable[[], Awaitable[object]]
Cpu = dict[str, float]
"""Seconds of CPU by who used them: the worker, the caller, Temporal, PostgreSQL."""


class Spread(NamedTuple):
    """The ratio of two contenders, taken in each round."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Round:
    """What one contender did in one round, in seconds."""

    wall: float
    latencies: list[float]
    cpu: Cpu

    @property
    def rate(self) -> float:
        """How many in a second."""
        return len(self.latencies) / self.wall


class Figures(BaseModel):
    """One contender in one case: medians of rounds; percentiles over all rounds; ratios to the others."""

    contender: str
    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: dict[str, float]
    ratios: dict[str, Spread]


class WayCase(BaseModel):
    """All ways to do one thing, in one case."""

    what: str
    at_once: int
    figures: list[Figures]


async def serve_rounds(run: Callable[[int], Awaitable[object]]) -> None:
    """Make the rounds that standard input asks for, each with a line `steps at_once count`, and write their times."""
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        steps, at_once, count = map(int, line.split())
        wall, latencies = await time_calls(partial(run, steps), at_once=at_once, count=count)
        print(json.dumps([wall, latencies]), flush=True)


async def time_calls(call: Call, *, at_once: int, count: int) -> tuple[float, list[float]]:
    """Make the calls, so many at once; return how long all of them took, and each."""
    latencies: list[float] = []
    tickets = iter(range(count))

    async def caller() -> None:
        for _ in tickets:
            began = time.perf_counter()
            await call()
            latencies.append(time.perf_counter() - began)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(at_once, count)):
            tasks.create_task(caller())
    return time.perf_counter() - began, latencies


async def compare_ways(what: str, ways: dict[str, Call], *, at_once: int, count: int, rounds: int) -> WayCase:
    """Let the ways take turns in this process; who goes first changes from round to round."""
    taken: dict[str, list[Round]] = {name: [] for name in ways}
    for way in ways.values():
        await time_calls(way, at_once=at_once, count=WARM_UP)
    for number in range(rounds):
        print(f"{what}, {at_once} at once: round {number + 1} of {rounds}", file=sys.stderr)
        for name in in_turn(ways, number):
            taken[name].append(Round(*await time_calls(ways[name], at_once=at_once, count=count), cpu={}))
    return WayCase(what=what, at_once=at_once, figures=[figures_of(name, taken) for name in taken])


def cpu_of(process: psutil.Process) -> float:
    """Return the CPU that a process has used, with that of its children, ended ones too."""
    used = sum(process.cpu_times()[:4])
    for child in process.children(recursive=True):
        try:
            used += sum(child.cpu_times()[:2])
        except psutil.NoSuchProcess:
            continue
    return used


def used(before: Cpu, after: Cpu) -> Cpu:
    """Return what was used in between."""
    return {name: after[name] - before[name] for name in after}


def in_turn(contenders: Iterable[T], number: int) -> list[T]:
    """Return the contenders in the order of a round: another one is first each time."""
    every = list(contenders)
    first = number % len(every)
    return every[first:] + every[:first]


def figures_of(name: str, taken: dict[str, list[Round]]) -> Figures:
    """Put a contender's rounds together, and compare them with the others' of the same rounds."""
    rounds = taken[name]
    latencies = sorted(latency for one in rounds for latency in one.latencies)
    rates = {other: [one.rate for one in others] for other, others in taken.items()}
    return Figures(
        contender=name,
        per_s=statistics.median(rates[name]),
        p50_ms=1000 * percentile(latencies, 0.50),
        p99_ms=1000 * percentile(latencies, 0.99),
        cpu_ms={
            who: 1000 * statistics.median(one.cpu[who] / len(one.latencies) for one in rounds) for who in rounds[0].cpu
        },
        ratios=ratios_of(name, rates),
    )


def ratios_of(name: str, rates: dict[str, list[float]]) -> dict[str, Spread]:
    """Compare a contender's rates with each other one's, round by round."""
    return {other: spread(rates[name], theirs) for other, theirs in rates.items() if other != name}


def spread(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Return the ratio of two series, pair by pair."""
    ratios = [our / their for our, their in zip(ours, theirs, strict=True)]
    return Spread(statistics.median(ratios), min(ratios), max(ratios))


def percentile(ascending: Sequence[float], share: float) -> float:
    """Return the value below which this share of them lies."""
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))]
