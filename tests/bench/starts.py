"""Compare starts with the modules' code and without it, and start 2,000 at once: `python -m tests.bench.starts`.

A start is measured without a worker, a run with one: from the call to its result. Both callers use the same servers in
the same minutes, in turns.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rich.console import Console
from rich.table import Table

from redrive import Redrive, Registry
from redrive.idempotency.postgres_claims import PostgresClaims
from redrive.logs import configure_logging
from redrive.modules import DEFAULT_REGISTRY
from redrive.published_catalogs import Publication, PublishedCatalogs
from tests.bench.contenders import ORDER, Stage, stage
from tests.bench.keys import Figures, Round, Way, figures_of, time_round
from tests.bench.modules import PIPELINES

WITH, WITHOUT = "with the code", "without"
NOBODY = "nobody"
PIPELINE = PIPELINES[1].name
AT_ONCE = (1, 50)
WARM_UP = 20

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


def starting(redrive: Redrive) -> Way:
    """Return a way that makes a start."""
    return lambda: redrive.start(PIPELINE, ORDER)


def running(redrive: Redrive) -> Way:
    """Return a way that makes a run and waits for its result."""

    async def run() -> object:
        return await redrive.result((await redrive.start(PIPELINE, ORDER)).run_id)

    return run


async def compare(what: str, ways: dict[str, Way], starts: int, rounds: int) -> list[Figures]:
    """Let both take turns; who goes first changes from round to round."""
    figures: list[Figures] = []
    for at_once in AT_ONCE:
        count = starts if at_once > 1 else max(1, starts // 5)
        taken: dict[str, list[Round]] = {name: [] for name in ways}
        for way in ways.values():
            await time_round(way, at_once, WARM_UP)
        for number in range(rounds):
            for name in ways if number % 2 else reversed(ways):
                taken[name].append(await time_round(ways[name], at_once, count))
        figures += [figures_of(f"{what} {name}", at_once, taken[name], taken[WITH]) for name in ways]
    return figures


async def burst(redrive: Redrive, count: int) -> dict[str, float]:
    """Start so many at once, and count the errors."""
    began = time.perf_counter()
    answers = await asyncio.gather(*(redrive.start(PIPELINE, ORDER) for _ in range(count)), return_exceptions=True)
    took = time.perf_counter() - began
    problems = [answer for answer in answers if isinstance(answer, BaseException)]
    for problem in problems[:3]:
        print(f"bench: {problem!r}", file=sys.stderr)
    return {"starts": count, "errors": len(problems), "seconds": round(took, 1), "per_s": round(count / took)}


async def bench(starts: int, rounds: int, at_once: int) -> tuple[list[Figures], dict[str, float]]:
    """Measure everything on a stack of its own."""
    async with stage("tests.bench.modules") as on:
        async with callers(on, NOBODY) as known:
            await _publish(on)
            figures = await compare("start", {name: starting(each) for name, each in known.items()}, starts, rounds)
        async with callers(on, on.info.task_queue) as known:
            figures += await compare("run", {name: running(each) for name, each in known.items()}, starts, rounds)
            return figures, await burst(known[WITHOUT], at_once)


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


def _show(figures: list[Figures], burst: dict[str, float]) -> None:
    table = Table("at once", "way", "per s", "p50 ms", "p99 ms", "ratio", title=f"{os.cpu_count()} cores")
    for each in figures:
        ratio = f"{each.ratio:.2f} ({each.ratio_low:.2f}-{each.ratio_high:.2f})"
        table.add_row(
            str(each.at_once), each.way, f"{each.per_s:.0f}", f"{each.p50_ms:.1f}", f"{each.p99_ms:.1f}", ratio
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    print("{starts} starts at once without the code: {errors} errors, {seconds} s, {per_s} a second".format(**burst))


def main() -> None:
    """Run the benchmark as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.starts", description=__doc__.partition(":")[0])
    parser.add_argument("--starts", type=int, default=150, help="starts of a caller in a round (one at once: a fifth)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each case")
    parser.add_argument("--burst", type=int, default=2000, help="starts at once")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    words = parser.parse_args()
    configure_logging("warning")
    figures, at_once = asyncio.run(bench(words.starts, words.rounds, words.burst))
    if words.json:
        print(json.dumps({"ways": [each.model_dump() for each in figures], "burst": at_once}, indent=2))
    else:
        _show(figures, at_once)
    sys.stdout.flush()
    # Interpreter shutdown with Temporal's native threads alive can crash; everything is stopped by now.
    os._exit(1 if at_once["errors"] else 0)


if __name__ == "__main__":
    main()
