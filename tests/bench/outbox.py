"""How fast rows of an outbox become runs, beside Procrastinate on the same PostgreSQL: `python -m tests.bench.outbox`.

Four figures, each with the same rate and number for both:
- from the commit to the start, at a steady rate;
- rows a second that get their runs, with many waiting; the embedded Temporal is the limit there;
- rows a second that the bridge's own transactions take over, without Temporal;
- the same with many more waiting, whether depth slows it.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import asyncpg
import procrastinate

import redrive.outbox
from redrive.logs import configure_logging
from redrive.outbox.rows import call, install
from redrive.settings import Settings
from redrive.starter.stack.programs import worker_environment
from redrive.starter.stack.stack import Stack
from tests.bench.outbox_jobs import URL
from tests.conftest import eventually, owner_url

LANES, BATCH = 4, 50
# The worst of a hundred.
P99 = 98
# Programs are slow to start on a busy machine.
START_TIME = 60.0


def _shown(name: str, seconds: Sequence[float]) -> str:
    cuts = statistics.quantiles(seconds, n=100)
    return f"{name}: p50 {cuts[49] * 1000:.0f} ms, p99 {cuts[P99] * 1000:.0f} ms, of {len(seconds)}"


@contextlib.asynccontextmanager
async def _process(
    *command: str, environment: Mapping[str, str], ready: Callable[[], Awaitable[bool]]
) -> AsyncIterator[None]:
    """Run a program beside us, from when it is ready."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *command), env=environment, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        await eventually(ready, within=START_TIME)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await process.wait()


class OutboxBench:
    """The outbox of a stack without workers: a run is started, and nobody executes it."""

    def __init__(self, stack: Stack, state: Path) -> None:
        self._url = owner_url(stack.info)
        self._environment = worker_environment(stack.info, state_dir=state, embedded_temporal=True) | {
            "REDRIVE_LOG_LEVEL": "error",
            "REDRIVE_READY_FILE": str(state / "bridge-ready"),
        }

    @contextlib.asynccontextmanager
    async def _bridge(self) -> AsyncIterator[None]:
        file = Path(self._environment["REDRIVE_READY_FILE"])
        file.unlink(missing_ok=True)
        command = ("-m", "redrive.starter.cli.main", "bridge", "outbox")
        ready = partial(asyncio.to_thread, file.exists)
        async with _process(*command, environment=self._environment, ready=ready):
            yield

    async def latency(self, rate: int, seconds: float) -> str:
        """Return how long after its commit a row has its run."""
        connection = await asyncpg.connect(self._url)
        committed: dict[str, float] = {}
        async with self._bridge():
            begin = time.monotonic()
            for number in range(round(rate * seconds)):
                await asyncio.sleep(max(0.0, begin + number / rate - time.monotonic()))
                event_id = await redrive.outbox.enqueue(connection, "hello", {"name": "Ada"})
                committed[str(event_id)] = time.time()
            await self._until_started(connection)
        rows = await connection.fetch(
            "SELECT event_id, extract(epoch FROM started_at)::float8 AS at FROM redrive.outbox"
        )
        await connection.close()
        took = [row["at"] - committed[str(row["event_id"])] for row in rows if str(row["event_id"]) in committed]
        return _shown(f"redrive, commit to start at {rate}/s", took)

    async def _until_started(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        for _ in range(600):
            if not await connection.fetchval("SELECT EXISTS (SELECT FROM redrive.outbox WHERE status = 'pending')"):
                return
            await asyncio.sleep(0.1)

    async def fill(self, count: int) -> str:
        """Let so many rows wait, each made by enqueue()."""
        connection = await asyncpg.connect(self._url)
        begin = time.monotonic()
        await connection.execute(
            """SELECT count(redrive.enqueue('hello', '{"name": "Ada"}')) FROM generate_series(1, $1::integer)""", count
        )
        took = time.monotonic() - begin
        await connection.execute("ANALYZE redrive.outbox")
        await connection.close()
        return f"redrive, enqueue() in one transaction: {count / took:.0f} rows/s"

    async def started(self, seconds: float) -> str:
        """Return how many rows a second get their runs from one bridge, from its first second on."""
        connection = await asyncpg.connect(self._url)
        query = "SELECT count(*) FROM redrive.outbox WHERE status = 'in_flight'"
        async with self._bridge():
            before, begin = await connection.fetchval(query), time.monotonic()
            await asyncio.sleep(seconds)
            done, took = await connection.fetchval(query) - before, time.monotonic() - begin
        waiting = await connection.fetchval("SELECT count(*) FROM redrive.outbox WHERE status = 'pending'")
        await connection.close()
        return f"redrive, runs started by one bridge: {done / took:.0f} rows/s ({waiting} still waiting)"

    async def taken(self, seconds: float) -> str:
        """Return how many rows a second a bridge's own transactions take over, without Temporal."""
        done, begin = 0, time.monotonic()

        async def lane() -> None:
            nonlocal done
            connection = await asyncpg.connect(self._url)
            while time.monotonic() - begin < seconds:
                async with connection.transaction():
                    rows = await call(connection, "redrive", "take", BATCH)
                    ids = [row["event_id"] for row in rows]
                    await call(connection, "redrive", "started", ids, [f"run-{each}" for each in ids])
                done += len(rows)
            await connection.close()

        await asyncio.gather(*(lane() for _ in range(LANES)))
        return f"redrive, taken over without Temporal: {done / (time.monotonic() - begin):.0f} rows/s"


class JobsBench:
    """Procrastinate, in a database of its own on the same server."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._environment = {**os.environ, URL: url}

    @contextlib.asynccontextmanager
    async def _worker(self) -> AsyncIterator[None]:
        # Not by `-m`: it wants its app to be in an imported module.
        command = ("-c", "import asyncio; from tests.bench.outbox_jobs import work; asyncio.run(work())")
        async with _process(*command, environment=self._environment, ready=self._has_worker):
            yield

    async def _has_worker(self) -> bool:
        return bool(
            await self._fetch("SELECT FROM procrastinate_workers WHERE last_heartbeat > now() - interval '5 s'")
        )

    async def latency(self, rate: int, seconds: float) -> str:
        """Return how long after its commit a job is started."""
        app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=self._url))
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            async with self._worker():
                begin = time.monotonic()
                for number in range(round(rate * seconds)):
                    await asyncio.sleep(max(0.0, begin + number / rate - time.monotonic()))
                    await app.configure_task("greet").defer_async(name="Ada")
                await asyncio.sleep(2)
        rows = await self._fetch(
            """
            SELECT extract(epoch FROM started.at - deferred.at)::float8 AS took
            FROM procrastinate_events AS started JOIN procrastinate_events AS deferred USING (job_id)
            WHERE started.type = 'started' AND deferred.type = 'deferred'
            """
        )
        return _shown(f"procrastinate, commit to start at {rate}/s", [row["took"] for row in rows])

    async def started(self, waiting: int, seconds: float) -> str:
        """Return how many jobs a second one worker starts and ends, with many waiting."""
        await self._fetch(
            """
            INSERT INTO procrastinate_jobs (queue_name, task_name, args)
            SELECT 'default', 'greet', '{"name": "Ada"}' FROM generate_series(1, $1::integer)
            """,
            waiting,
        )
        query = "SELECT count(*) AS done FROM procrastinate_events WHERE type = 'started'"
        async with self._worker():
            before, begin = (await self._fetch(query))[0]["done"], time.monotonic()
            await asyncio.sleep(seconds)
            done, took = (await self._fetch(query))[0]["done"] - before, time.monotonic() - begin
        return f"procrastinate, jobs started by one worker: {done / took:.0f} jobs/s ({waiting} waiting)"

    async def _fetch(self, query: str, *values: object) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self._url)
        try:
            return await connection.fetch(query, *values)
        finally:
            await connection.close()


async def _measure(words: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="redrive-bench-", ignore_cleanup_errors=True) as directory:
        state = Path(directory)
        # PostgreSQL does not run as root: its account has to get through here.
        state.chmod(0o711)
        async with Stack(Settings(), state_dir=state / "state", workers=0) as stack:
            url = owner_url(stack.info)
            await install(url, "redrive")
            outbox = OutboxBench(stack, state)
            print(await outbox.latency(words.rate, words.seconds), flush=True)
            print(await outbox.fill(words.waiting), flush=True)
            print(await outbox.started(words.seconds), flush=True)
            print(await outbox.taken(words.seconds / 2), flush=True)
            if words.depth:
                print(await outbox.fill(words.depth), flush=True)
                print(f"with {words.depth} more: {await outbox.taken(words.seconds / 2)}", flush=True)
            jobs = JobsBench(await _database(url, "jobs"))
            print(await jobs.latency(words.rate, words.seconds), flush=True)
            print(await jobs.started(words.waiting, words.seconds), flush=True)


async def _database(url: str, name: str) -> str:
    connection = await asyncpg.connect(url)
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    return f"{url.rsplit('/', 1)[0]}/{name}"


def main() -> None:
    """Run it as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.outbox", description=__doc__.partition(":")[0])
    parser.add_argument("--rate", type=int, default=200, help="rows a second, for the time from commit to start")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each part takes")
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--depth", type=int, default=0, help="then let so many more wait, say a million")
    words = parser.parse_args()
    configure_logging("error")
    asyncio.run(_measure(words))
    sys.stdout.flush()
    # Interpreter shutdown with Temporal's native threads alive can crash; everything is stopped by now.
    os._exit(0)


if __name__ == "__main__":
    main()
