"""Compare starts with the modules' code and without it, and start 2,000 at once: `python -m tests.bench.starts`.

A start is measured without a worker, a run with one: from the call to its result. Both callers use the same servers in
the same minutes, in turns.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import BaseModel, TypeAdapter
from rich.table import Table

from redrive import Redrive, Registry
from redrive.idempotency.postgres_claims import PostgresClaims
from redrive.modules import DEFAULT_REGISTRY
from redrive.published_catalogs import Publication, PublishedCatalogs
from tests.bench.contenders import Stage, stage
from tests.bench.keys import way_tables
from tests.bench.measure import Call, WayCase, compare_ways
from tests.bench.models import ORDER
from tests.bench.modules import PIPELINES
from tests.bench.program import count, run_program

WITH, WITHOUT = "with the code", "without"
NOBODY = "nobody"
PIPELINE = PIPELINES[1].name

Callers = dict[str, Redrive]


@asynccontextmanager
async def callers(on: Stage, task_queue: str) -> AsyncIterator[Callers]:
    """Say who starts runs on a task queue: with the modules, and with the catalog that workers published."""
    claims = PostgresClaims(on.info.database_url.get_secret_value())
    catalogs = PublishedCatalogs(claims.pool, on.client.namespace, task_queue)
    having = Redrive(on.client, task_queue=task_queue)
    lacking = Redrive(on.client, task_queue=task_queue, registry=Registry(), claims=claims, catalogs=catalogs)
    async with lacking:
        yield {WITH: having, WITHOUT: lacking}


class Burst(BaseModel):
    """Many starts at once."""

    starts: int
    errors: int
    seconds: float


class StartReport(BaseModel):
    """Starts and runs by both callers, and the burst."""

    cases: list[WayCase]
    burst: Burst


def starting(redrive: Redrive) -> Call:
    """Return a way that makes a start."""
    return lambda: redrive.start(PIPELINE, ORDER)


def running(redrive: Redrive) -> Call:
    """Return a way that makes a run and waits for its result."""

    async def run() -> object:
        return await redrive.result((await redrive.start(PIPELINE, ORDER)).run_id)

    return run


async def _compare(what: str, ways: dict[str, Call], starts: int, rounds: int) -> list[WayCase]:
    return [
        await compare_ways(what, ways, at_once=at_once, count=number, rounds=rounds)
        for at_once, number in ((1, max(1, starts // 5)), (50, starts))
    ]


async def burst(redrive: Redrive, number: int) -> Burst:
    """Start so many at once, and count the errors."""
    began = time.perf_counter()
    answers = await asyncio.gather(*(redrive.start(PIPELINE, ORDER) for _ in range(number)), return_exceptions=True)
    took = time.perf_counter() - began
    problems = [answer for answer in answers if isinstance(answer, BaseException)]
    for problem in problems[:3]:
        print(f"bench: {problem!r}", file=sys.stderr)
    return Burst(starts=number, errors=len(problems), seconds=took)


async def bench(starts: int, rounds: int, at_once: int) -> StartReport:
    """Measure everything on a stack of its own."""
    async with stage("tests.bench.modules") as on:
        async with callers(on, NOBODY) as known:
            await _publish(on)
            cases = await _compare("starts", {name: starting(each) for name, each in known.items()}, starts, rounds)
        async with callers(on, on.info.task_queue) as known:
            cases += await _compare("runs", {name: running(each) for name, each in known.items()}, starts, rounds)
            return StartReport(cases=cases, burst=await burst(known[WITHOUT], at_once))


async def _publish(on: Stage) -> None:
    """Publish the catalog of a task queue whose workers have stopped."""
    claims = PostgresClaims(on.info.database_url.get_secret_value())
    publication = Publication(
        claims.pool, DEFAULT_REGISTRY, namespace=on.client.namespace, task_queue=NOBODY, build_id="bench"
    )
    keeping = asyncio.create_task(publication.keep())
    await publication.tried.wait()
    keeping.cancel()
    await claims.close()


def tables(report: StartReport) -> list[Table]:
    """Return the figures as tables."""
    burst = report.burst
    title = f"{burst.starts} starts at once without the code: {burst.errors} errors, {burst.seconds:.1f} s"
    return way_tables(report.cases, title, WITH)


def main() -> None:
    """Run the benchmark as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.starts", description=__doc__.partition(":")[0])
    parser.add_argument("--starts", type=count, default=150, help="starts in a round (one at once: a fifth)")
    parser.add_argument("--rounds", type=count, default=5, help="rounds of each case")
    parser.add_argument("--burst", type=count, default=2000, help="starts at once")
    run_program(
        parser,
        lambda words: bench(words.starts, words.rounds, words.burst),
        TypeAdapter(StartReport),
        tables,
    )


if __name__ == "__main__":
    main()
