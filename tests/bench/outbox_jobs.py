"""Procrastinate as its users run it, for the comparison with the outbox: an app, a task, a worker process."""

import os

import procrastinate

URL = "OUTBOX_BENCH_URL"

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ.get(URL, "")))


@app.task(name="greet")
async def greet(name: str) -> None:
    """Do nothing: what is measured is the start."""


async def work() -> None:
    """Run a worker until it is terminated."""
    async with app.open_async():
        await app.run_worker_async(concurrency=100, listen_notify=True)
