"""Measure what the server's queue settings do to single runs: `python -m tests.bench.server_queues`.

Each case has a server of its own: the defaults of Temporal, then one more setting with each case. Plain workflows, one
after another; nothing of Redrive but the server's command line.
"""

import argparse
import asyncio
import logging
import os
import socket
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from redrive.starter.stack.temporal_server import TemporalServer, find_temporal
from tests.conftest import eventually

QUEUE = "queue"
DELAY = timedelta(milliseconds=50)
TIMEOUT = timedelta(seconds=10)
SETTINGS = ("transfer", "timer", "visibility", "outbound")


@activity.defn
async def work() -> None:
    """Do nothing."""


@activity.defn
async def fail_once() -> None:
    """Fail at the first try, and ask for another soon."""
    if activity.info().attempt == 1:
        raise ApplicationError("once", next_retry_delay=DELAY)


@workflow.defn
class Probe:
    """So many of one thing, one after another."""

    @workflow.run
    async def run(self, kind: str, count: int) -> None:
        for _ in range(count):
            if kind == "timer":
                await asyncio.sleep(DELAY.total_seconds())
            else:
                await workflow.execute_activity(fail_once if kind == "retry" else work, start_to_close_timeout=TIMEOUT)


@asynccontextmanager
async def server(settings: Sequence[str]) -> AsyncIterator[Client]:
    """Run a server with these queues read up to 1000 times a second, and the others at the default."""
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as directory:
        made = TemporalServer(find_temporal(), Path(directory) / "temporal.db", _free_port(), _free_port())
        words = [word for pair in _pairs(made.command) for word in pair]
        for name in settings:
            words += ["--dynamic-config-value", f"history.{name}ProcessorMaxPollRPS=1000"]
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.DEVNULL)
        try:
            await eventually(made.is_ready)
            yield await Client.connect(made.address)
        finally:
            process.terminate()
            await process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _pairs(command: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the command without what is measured."""
    pairs: list[tuple[str, ...]] = [tuple(command[:3])]
    pairs += [(name, value) for name, value in zip(command[3::2], command[4::2], strict=True)]
    return [pair for pair in pairs if "MaxPollRPS" not in pair[-1]]


async def measured(client: Client, kind: str, count: int, runs: int) -> str:
    """Return the median and the 95th percentile of runs, in milliseconds."""
    took: list[float] = []
    for _ in range(runs):
        began = time.perf_counter()
        await client.execute_workflow(Probe.run, args=[kind, count], id=uuid.uuid4().hex, task_queue=QUEUE)
        took.append(1000 * (time.perf_counter() - began))
    return _text(took)


async def listed(client: Client, runs: int) -> str:
    """Return how long a new run is missing in lists."""
    took: list[float] = []
    for _ in range(runs):
        run = uuid.uuid4().hex
        await client.start_workflow(Probe.run, args=["work", 0], id=run, task_queue="nobody")
        began = time.perf_counter()
        while not (await client.count_workflows(f"WorkflowId = '{run}'")).count:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        took.append(1000 * (time.perf_counter() - began))
    return _text(took)


def _text(took: list[float]) -> str:
    took.sort()
    return f"{statistics.median(took):.0f} ({took[int(0.95 * len(took))]:.0f})"


async def bench(runs: int) -> None:
    """Measure case after case."""
    cases = [SETTINGS[:count] for count in range(len(SETTINGS) + 1)]
    headers = (
        "1000 reads a second of",
        "1 step",
        "3 steps",
        "retry after 50 ms",
        "timer of 50 ms",
        "3 timers",
        "listed",
    )
    table = Table(*headers, title=f"ms, median (p95); {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for settings in cases:
        async with server(settings) as client:
            runner = UnsandboxedWorkflowRunner()
            async with Worker(
                client, task_queue=QUEUE, workflows=[Probe], activities=[work, fail_once], workflow_runner=runner
            ):
                await measured(client, "work", 1, 10)
                kinds = (("work", 1), ("work", 3), ("retry", 1), ("timer", 1), ("timer", 3))
                figures = [await measured(client, kind, count, runs) for kind, count in kinds]
                table.add_row(", ".join(settings) or "none", *figures, await listed(client, runs))
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def main() -> None:
    """Run the benchmark as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.server_queues", description=__doc__.partition(":")[0])
    parser.add_argument("--runs", type=int, default=30, help="runs of each kind in each case")
    logging.disable(logging.CRITICAL)
    asyncio.run(bench(parser.parse_args().runs))
    sys.stdout.flush()
    # Interpreter shutdown with Temporal's native threads alive can crash; everything is stopped by now.
    os._exit(0)


if __name__ == "__main__":
    main()
