"""The same with Celery: a task that fails once and asks for `retry(countdown=…)`. Run as a worker and by the bench."""

import asyncio
import contextlib
import os
import sys
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from celery import Celery

from tests.bench.retry_load import Flow, flow_of

COUNTDOWN = 5.0
WORKERS = 2
QUEUE = "bench.celery"
URL = os.environ.get("BENCH_RABBITMQ_URL", "amqp://localhost")
RESULTS = Path(os.environ.get("BENCH_RESULTS", "results"))
ROOT = Path(__file__).parents[2]

app = Celery("tests.bench.retry_celery", broker=URL)
app.conf.update(task_default_queue=QUEUE, task_ignore_result=True, worker_hijack_root_logger=False)


@app.task(bind=True, max_retries=1)  # type: ignore[untyped-decorator]  # Celery has no types
def flaky(task: Any, due: float) -> None:
    """Fail at first; the second time, note how late it is."""
    if task.request.retries == 0:
        raise task.retry(args=[time.time() + COUNTDOWN], countdown=COUNTDOWN)
    with (RESULTS / str(os.getpid())).open("a") as file:
        file.write(f"{due} {time.time()}\n")


@contextlib.asynccontextmanager
async def _worker(environment: dict[str, str]) -> AsyncIterator[None]:
    words = ["-m", "celery", "-A", "tests.bench.retry_celery", "worker", "--concurrency", str(WORKERS), "-l", "ERROR"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *words, "--without-gossip", "--without-mingle"),
        env=environment,
        cwd=ROOT,
        stdout=DEVNULL,
        stderr=DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def time_celery(url: str, folder: Path, count: int, limit: float) -> Flow:
    """Send so many tasks that fail once, and measure their retries."""
    results = folder / "celery"
    results.mkdir()
    sender = Celery(broker=url)
    sender.conf.update(task_default_queue=QUEUE, task_ignore_result=True)
    environment = os.environ | {"BENCH_RABBITMQ_URL": url, "BENCH_RESULTS": str(results), "C_FORCE_ROOT": "1"}

    def send() -> None:
        with sender.connection_for_write() as connection, connection.Producer() as producer:
            for _ in range(count):
                sender.send_task("tests.bench.retry_celery.flaky", args=[0.0], producer=producer)

    await asyncio.to_thread(send)
    async with _worker(dict(environment)), asyncio.timeout(limit):
        while len(found := _read(results)) < count:  # noqa: ASYNC110  # it happens in other processes
            await asyncio.sleep(0.5)
    times = [at for _, at in found]
    return flow_of([at - due for due, at in found], max(times) - min(times))


def _read(results: Path) -> list[tuple[float, float]]:
    lines = [line for file in results.iterdir() for line in file.read_text().splitlines(keepends=True)]
    pairs = [line.split() for line in lines if line.endswith("\n")]
    return [(float(due), float(at)) for due, at in pairs]
