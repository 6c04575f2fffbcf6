"""Compare a start with a key with a plain Temporal start, and with the answer to a key: `python -m tests.bench.keys`.

No worker takes the runs: what is measured is the start, from the call to its answer. The ways take turns on the same
servers, in the same minutes.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from redrive import Redrive, RunStatus
from redrive.connection import connect_temporal
from redrive.idempotency.claims import ClaimRequest, Settlement
from redrive.idempotency.postgres_claims import PostgresClaims
from redrive.keys import KEY_TTL, request_hash, run_id_for_key
from redrive.logs import configure_logging
from redrive.settings import Settings
from redrive.starter.stack.stack import Stack
from tests.bench.contenders import ORDER, PLAIN
from tests.bench.modules import PIPELINES
from tests.bench.plain import PlainRun

TENANT = "bench"
ANSWERED = "answered"
PIPELINE = PIPELINES[1]
WAYS = ("plain start", "keyed start", "cached answer")
AT_ONCE = (1, 50)
WARM_UP = 50

Way = Callable[[], Awaitable[object]]


class Figures(BaseModel):
    """One way in one case: medians of rounds, and its rate against that of the plain start in the same round."""

    way: str
    at_once: int
    per_s: float
    p50_ms: float
    p99_ms: float
    ratio: float
    ratio_low: float
    ratio_high: float


class Round(BaseModel):
    """One way in one round, in seconds."""

    wall: float
    latencies: list[float]

    @property
    def rate(self) -> float:
        """Starts in a second."""
        return len(self.latencies) / self.wall


@asynccontextmanager
async def ways() -> AsyncIterator[dict[str, Way]]:
    """Bring up a stack, and say how to start on it."""
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as directory:
        async with Stack(Settings(), state_dir=Path(directory), workers=0) as stack:
            client = await connect_temporal(Settings(temporal_address=stack.info.temporal_address))
            claims = PostgresClaims(stack.info.database_url.get_secret_value())
            async with Redrive(client, task_queue="nobody", claims=claims) as redrive:
                await _answer_for_good(claims)

                async def plain() -> object:
                    return await client.start_workflow(
                        PlainRun.run, args=[ORDER, 1], id=f"plain-{uuid.uuid4().hex}", task_queue=PLAIN
                    )

                async def keyed() -> object:
                    return await redrive.start(PIPELINE, ORDER, tenant=TENANT, key=uuid.uuid4().hex)

                async def cached() -> object:
                    return await redrive.start(PIPELINE, ORDER, tenant=TENANT, key=ANSWERED)

                yield dict(zip(WAYS, (plain, keyed, cached), strict=True))


async def _answer_for_good(claims: PostgresClaims) -> None:
    """Make a key whose run has ended."""
    request = ClaimRequest(
        tenant=TENANT,
        key=ANSWERED,
        run_id=run_id_for_key(TENANT, ANSWERED),
        pipeline=PIPELINE.name,
        request_hash=request_hash(PIPELINE.name, ORDER.model_dump(mode="json")),
        expires_at=datetime.now(UTC) + KEY_TTL,
    )
    await claims.settle(request, Settlement(status=RunStatus.SUCCESS, output=ORDER.model_dump(mode="json")))


async def time_round(way: Way, at_once: int, starts: int) -> Round:
    """Make the starts, so many at once."""
    latencies: list[float] = []
    tickets = iter(range(starts))

    async def caller() -> None:
        for _ in tickets:
            began = time.perf_counter()
            await way()
            latencies.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(min(at_once, starts))))
    return Round(wall=time.perf_counter() - began, latencies=latencies)


async def bench(starts: int, rounds: int) -> list[Figures]:
    """Measure every way in every case."""
    figures: list[Figures] = []
    async with ways() as known:
        for at_once in AT_ONCE:
            taken: dict[str, list[Round]] = {name: [] for name in WAYS}
            for way in known.values():
                await time_round(way, at_once, WARM_UP)
            for number in range(rounds):
                for name in WAYS if number % 2 else reversed(WAYS):
                    taken[name].append(await time_round(known[name], at_once, starts))
            figures += [figures_of(name, at_once, taken[name], taken[WAYS[0]]) for name in WAYS]
    return figures


def figures_of(way: str, at_once: int, rounds: list[Round], plain: list[Round]) -> Figures:
    """Put the rounds of a way together; `plain` are those that it is compared with."""
    latencies = sorted(latency for one in rounds for latency in one.latencies)
    ratios = [ours.rate / theirs.rate for ours, theirs in zip(rounds, plain, strict=True)]
    return Figures(
        way=way,
        at_once=at_once,
        per_s=statistics.median(one.rate for one in rounds),
        p50_ms=1000 * latencies[len(latencies) // 2],
        p99_ms=1000 * latencies[min(len(latencies) - 1, int(0.99 * len(latencies)))],
        ratio=statistics.median(ratios),
        ratio_low=min(ratios),
        ratio_high=max(ratios),
    )


def _show(figures: list[Figures]) -> None:
    table = Table("at once", "way", "per s", "p50 ms", "p99 ms", "ratio", title=f"{os.cpu_count()} cores")
    for each in figures:
        ratio = f"{each.ratio:.2f} ({each.ratio_low:.2f}-{each.ratio_high:.2f})"
        numbers = (f"{each.per_s:.0f}", f"{each.p50_ms:.1f}", f"{each.p99_ms:.1f}")
        table.add_row(str(each.at_once), each.way, *numbers, ratio)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def main() -> None:
    """Run the benchmark as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.keys", description=__doc__.partition(":")[0])
    parser.add_argument("--starts", type=int, default=300, help="starts of a way in a round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each case")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    words = parser.parse_args()
    configure_logging("warning")
    figures = asyncio.run(bench(words.starts, words.rounds))
    print(json.dumps([each.model_dump() for each in figures], indent=2)) if words.json else _show(figures)
    sys.stdout.flush()
    # Interpreter shutdown with Temporal's native threads alive can crash; everything is stopped by now.
    os._exit(0)


if __name__ == "__main__":
    main()
