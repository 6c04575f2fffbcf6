"""Measure the retry scheduler, beside Celery on the same RabbitMQ: `python -m tests.bench.rabbitmq`.

Three questions: how late are retries at a steady rate with many waiting; does the number that waits slow it down; what
does a Celery worker do with as many `retry(countdown=…)`.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table as Shown

from redrive.connection import connect_temporal
from redrive.errors import StackError
from redrive.logs import configure_logging
from redrive.settings import Settings
from redrive.starter.stack.programs import worker_environment
from redrive.starter.stack.stack import Stack
from tests.bench.contenders import with_bytecode
from tests.bench.retry_celery import time_celery
from tests.bench.retry_load import (
    RETRY_QUEUE,
    REVIEW_QUEUE,
    TENANT,
    Flow,
    Table,
    open_channel,
    receiving,
    send_steadily,
)
from tests.chaos.retry_scene import bridge_environment, bridges
from tests.conftest import owner_url
from tests.integration.bridges.rabbit import rabbitmq_server

TIME_LIMIT = 300.0


class Report(BaseModel):
    """All figures."""

    rate_asked: int
    waiting: int
    steady: Flow
    shallow_waiting: int
    shallow_per_s: float
    deep_waiting: int
    deep_per_s: float
    celery: Flow

    @property
    def ratio(self) -> float:
        """Throughput with many waiting against few."""
        return self.deep_per_s / self.shallow_per_s


def main() -> None:
    """Run the benchmark as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.rabbitmq", description=__doc__.partition(":")[0])
    parser.add_argument("--rate", type=int, default=2000, help="retries a second, sustained")
    parser.add_argument("--seconds", type=float, default=30.0, help="for so long")
    parser.add_argument("--waiting", type=int, default=100_000, help="messages that wait beside")
    parser.add_argument("--shallow", type=int, default=10_000)
    parser.add_argument("--deep", type=int, default=1_000_000)
    parser.add_argument(
        "--burst", type=int, default=10_000, help="messages due at once, to see how many a second it is"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--celery", type=int, default=10_000, help="tasks of Celery")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    words = parser.parse_args()
    configure_logging("error")
    for chatty in ("aiormq", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.CRITICAL)
    code = 0
    try:
        report = asyncio.run(_bench(words))
        print(report.model_dump_json(indent=2)) if words.json else _show(report)
    except (StackError, TimeoutError) as error:
        print(f"bench: not done: {type(error).__name__} {error}", file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Interpreter shutdown with Temporal's native threads alive can crash; everything is stopped by now.
    os._exit(code)


async def _bench(words: argparse.Namespace) -> Report:
    async with _stage() as (stack, url, folder, table):
        async with _running_bridge(stack, url, folder):
            await table.fill(words.waiting)
            steady = await _steady(url, words.rate, words.seconds)
            await table.empty()
            await table.fill(words.shallow)
            shallow = await _bursts(url, table, words)
            await table.fill(words.deep - words.shallow)
            deep = await _bursts(url, table, words)
            await table.empty()
        celery = await time_celery(url, folder, words.celery, TIME_LIMIT)
    return Report(
        rate_asked=words.rate,
        waiting=words.waiting,
        steady=steady,
        shallow_waiting=words.shallow,
        shallow_per_s=shallow,
        deep_waiting=words.deep,
        deep_per_s=deep,
        celery=celery,
    )


@contextlib.asynccontextmanager
async def _stage() -> AsyncIterator[tuple[Stack, str, Path, Table]]:
    with tempfile.TemporaryDirectory(prefix="redrive-bench-", ignore_cleanup_errors=True) as directory:
        folder = Path(directory)
        # PostgreSQL does not run as root: its account has to get through here.
        folder.chmod(0o711)
        async with Stack(Settings(), state_dir=folder, workers=0) as stack, rabbitmq_server(folder) as rabbitmq:
            connection = await asyncpg.connect(owner_url(stack.info))
            async with open_channel(rabbitmq.url):
                pass
            try:
                yield stack, rabbitmq.url, folder, Table(connection)
            finally:
                connection.terminate()


@contextlib.asynccontextmanager
async def _running_bridge(stack: Stack, url: str, folder: Path) -> AsyncIterator[None]:
    environment = bridge_environment(
        with_bytecode(worker_environment(stack.info, state_dir=folder, embedded_temporal=True), folder),
        url=url,
        retry_queue=RETRY_QUEUE,
        review_queue=REVIEW_QUEUE,
    )
    client = await connect_temporal(Settings(temporal_address=stack.info.temporal_address))
    async with bridges(1, environment, TENANT, folder, client):
        yield


async def _steady(url: str, rate: int, seconds: float) -> Flow:
    async with receiving(url) as arrivals:
        sent = await send_steadily(url, rate=rate, seconds=seconds)
        await arrivals.reach(sent, TIME_LIMIT)
    return arrivals.flow()


async def _bursts(url: str, table: Table, words: argparse.Namespace) -> float:
    """Return the median of messages a second when many are due at once."""
    rates = []
    for _ in range(words.rounds):
        async with receiving(url) as arrivals:
            await table.make_due(words.burst)
            await arrivals.reach(words.burst, TIME_LIMIT)
        rates.append(arrivals.flow().per_s)
    return statistics.median(rates)


def _show(report: Report) -> None:
    console = Console(highlight=False)
    table = Shown("", "retries/s", "drift p50", "drift p99", "worst", box=None, header_style="bold")
    rows = {
        f"Redrive, {report.rate_asked}/s asked, {report.waiting:,} waiting": report.steady,
        f"Celery, {report.celery.messages:,} retries of one countdown": report.celery,
    }
    for name, flow in rows.items():
        times = (f"{value:,.0f} ms" for value in (flow.p50_ms, flow.p99_ms, flow.worst_ms))
        table.add_row(name, f"{flow.per_s:,.0f}", *times)
    console.print(table)
    console.print(f"\nAll due at once: {report.shallow_per_s:,.0f}/s with {report.shallow_waiting:,} waiting")
    console.print(f"                 {report.deep_per_s:,.0f}/s with {report.deep_waiting:,} waiting")
    console.print(f"                 ratio {report.ratio:.2f}")


if __name__ == "__main__":
    main()
