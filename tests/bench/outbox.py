"""How fast rows of an outbox become runs, beside plain starts and Procrastinate: `python -m tests.bench.outbox`.

No worker takes the runs: a run is started when Temporal has accepted it, and that is what is measured.
- starts a second by one bridge with many rows waiting, and plain `start_workflow` calls, in turns on the same servers;
- from the commit to the start at a steady rate, and from the call to the answer of a plain start, in turns. The rate is
  the highest of RATES that plain starts sustain, or the one that is given;
- rows a second that the bridge's own transactions take over, without Temporal;
- both again with `--depth` more rows that are due (and withdrawn before starts are timed), as many that are not due
  yet, and as many that are delivered;
- Procrastinate on the same PostgreSQL, at the same rate, with as many jobs waiting.
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
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import asyncpg
import procrastinate
from temporalio.client import Client

import redrive.outbox
from redrive.connection import connect_temporal
from redrive.contracts import RunInput, Workflow
from redrive.logs import configure_logging
from redrive.outbox.rows import call, install
from redrive.settings import Settings
from redrive.starter.stack.programs import worker_environment
from redrive.starter.stack.stack import Stack
from tests.bench.outbox_jobs import URL
from tests.conftest import eventually, owner_url

LANES, BATCH = 8, 25
AT_ONCE = 50
ROUNDS = 3
RATES = (200, 150, 100, 50, 25)
# A rate is sustained if the worst of a hundred starts is answered within this.
SUSTAINED = 0.25
P50, P99 = 49, 98
_DEEP = """
    INSERT INTO redrive.outbox (pipeline, key, payload, status, run_after, run_id, started_at, ended_at)
    SELECT 'hello', kind || number, '{"name": "Ada"}', CASE kind WHEN 'delivered' THEN kind ELSE 'pending' END,
        now() + CASE kind WHEN 'later' THEN interval '1 day' ELSE interval '-1 hour' END,
        CASE kind WHEN 'delivered' THEN 'run-' || number END,
        CASE kind WHEN 'delivered' THEN now() END, CASE kind WHEN 'delivered' THEN now() END
    FROM generate_series(1, $1::integer) AS number, unnest(ARRAY['due', 'later', 'delivered']) AS kind
"""
# Programs are slow to start on a busy machine.
START_TIME = 60.0


def _shown(name: str, seconds: Sequence[float]) -> str:
    cuts = statistics.quantiles(seconds, n=100)
    return f"{name}: p50 {cuts[P50] * 1000:.0f} ms, p99 {cuts[P99] * 1000:.0f} ms, of {len(seconds)}"


async def _paced(rate: int, seconds: float) -> AsyncIterator[None]:
    """Return at a steady rate, whatever the caller has not finished yet."""
    begin = time.monotonic()
    for number in range(round(rate * seconds)):
        await asyncio.sleep(max(0.0, begin + number / rate - time.monotonic()))
        yield


class PlainBench:
    """Temporal's client alone: nothing but the start."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._run = RunInput(pipeline="hello", payload={"name": "Ada"})

    async def _start(self) -> float:
        begin = time.monotonic()
        name = f"plain-{uuid.uuid4().hex}"
        await self._client.start_workflow(Workflow.MODULE_RUN, self._run, id=name, task_queue="nobody")
        return time.monotonic() - begin

    async def rate(self, seconds: float) -> float:
        """Return how many starts a second are made, so many at once."""
        begin = time.monotonic()

        async def caller() -> int:
            done = 0
            while time.monotonic() - begin < seconds:
                await self._start()
                done += 1
            return done

        done = sum(await asyncio.gather(*(caller() for _ in range(AT_ONCE))))
        return done / (time.monotonic() - begin)

    async def latency(self, rate: int, seconds: float) -> list[float]:
        """Return how long starts take at a steady rate."""
        calls = [asyncio.create_task(self._start()) async for _ in _paced(rate, seconds)]
        return await asyncio.gather(*calls)

    async def sustained(self, seconds: float) -> int:
        """Return the highest rate at which starts do not queue up."""
        for rate in RATES:
            took = await self.latency(rate, seconds)
            print(_shown(f"plain, call to answer at {rate}/s", took), flush=True)
            if statistics.quantiles(took, n=100)[P99] < SUSTAINED:
                return rate
        return RATES[-1]


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

    async def beside(self, plain: PlainBench, rate: int, seconds: float) -> str:
        """Return how long after its commit a row has its run, and how long a plain start takes, in turns."""
        mine: list[float] = []
        others: list[float] = []
        async with self._bridge():
            # Its connections are opened by the first rows.
            await self._latency(rate=10, seconds=1.0)
            for _ in range(ROUNDS):
                mine += await self._latency(rate, seconds / ROUNDS)
                others += await plain.latency(rate, seconds / ROUNDS)
        ratios = [statistics.quantiles(mine, n=100)[n] / statistics.quantiles(others, n=100)[n] for n in (P50, P99)]
        return "\n".join(
            (
                _shown(f"redrive, commit to start at {rate}/s", mine),
                _shown(f"plain, call to answer at {rate}/s", others),
                f"ratio: p50 {ratios[0]:.2f}, p99 {ratios[1]:.2f}",
            )
        )

    async def _latency(self, rate: int, seconds: float) -> list[float]:
        connection = await asyncpg.connect(self._url)
        committed: dict[str, float] = {}
        async for _ in _paced(rate, seconds):
            event_id = await redrive.outbox.enqueue(connection, "hello", {"name": "Ada"})
            committed[str(event_id)] = time.time()
        await self._until_started(connection, list(committed))
        rows = await connection.fetch(
            "SELECT event_id::text, extract(epoch FROM started_at)::float8 AS at, last_error FROM redrive.outbox "
            "WHERE event_id = ANY ($1::uuid[])",
            list(committed),
        )
        await connection.close()
        failed = [row["last_error"] for row in rows if row["at"] is None]
        assert not failed, failed
        return [row["at"] - committed[row["event_id"]] for row in rows]

    async def _until_started(self, connection: "asyncpg.Connection[asyncpg.Record]", ids: list[str]) -> None:
        """Wait for the last run. At a rate that Temporal cannot take on this machine, that is long after the commit."""
        query = "SELECT FROM redrive.outbox WHERE event_id = ANY ($1::uuid[]) AND status = 'pending' LIMIT 1"

        async def all_started() -> bool:
            return not await connection.fetch(query, ids)

        await eventually(all_started, within=300)

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

    async def rate(self, seconds: float) -> float:
        """Return how many rows a second get their runs from one bridge, once it has begun."""
        connection = await asyncpg.connect(self._url)
        query = "SELECT count(*) FROM redrive.outbox WHERE started_at > to_timestamp($1)"
        async with self._bridge():
            since = time.time()

            async def has_begun() -> bool:
                return bool(await connection.fetchval(query, since))

            await eventually(has_begun, within=START_TIME)
            before, begin = await connection.fetchval(query, since), time.monotonic()
            await asyncio.sleep(seconds)
            done, took = await connection.fetchval(query, since) - before, time.monotonic() - begin
        await connection.close()
        return float(done / took)

    async def against(self, plain: PlainBench, seconds: float) -> str:
        """Return starts a second by one bridge and by plain calls, in turns."""
        pairs = [(await self.rate(seconds), await plain.rate(seconds)) for _ in range(ROUNDS)]
        bridge, calls = (statistics.median(each) for each in zip(*pairs, strict=True))
        ratios = sorted(mine / other for mine, other in pairs)
        return (
            f"redrive, runs started by one bridge: {bridge:.0f} rows/s; plain, {AT_ONCE} at once: {calls:.0f}/s; "
            f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )

    async def withdraw(self) -> None:
        """Let no row wait that is due."""
        connection = await asyncpg.connect(self._url)
        withdraw = "UPDATE redrive.outbox SET deleted_at = now() WHERE status = 'pending' AND run_after <= now()"
        await connection.execute(withdraw, timeout=600)
        await connection.close()

    async def deepen(self, count: int) -> str:
        """Let so many more rows be due, as many be not due yet, and as many be delivered."""
        connection = await asyncpg.connect(self._url)
        await connection.execute(_DEEP, count, timeout=600)
        await connection.close()
        return f"{count} more rows are due, as many are not due yet, and as many are delivered"

    async def taken(self, seconds: float) -> str:
        """Return how many rows a second a bridge's own transactions take over, without Temporal."""
        done, begin = 0, time.monotonic()

        async def lane() -> None:
            nonlocal done
            connection = await asyncpg.connect(self._url)
            place: tuple[object, ...] = ()
            while time.monotonic() - begin < seconds:
                async with connection.transaction():
                    rows = await call(connection, "redrive", "take", BATCH, *place)
                    place = (rows[-1]["run_after"], rows[-1]["position"]) if rows else ()
                    ids = [row["event_id"] for row in rows]
                    await call(connection, "redrive", "started", ids, [f"run-{each}" for each in ids], [0.0] * len(ids))
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
                async for _ in _paced(rate, seconds):
                    await app.configure_task("greet").defer_async(name="Ada")
                # All of them: otherwise the slowest would not count.
                await eventually(self._all_started, within=300)
        rows = await self._fetch(
            """
            SELECT extract(epoch FROM started.at - deferred.at)::float8 AS took
            FROM procrastinate_events AS started JOIN procrastinate_events AS deferred USING (job_id)
            WHERE started.type = 'started' AND deferred.type = 'deferred'
            """
        )
        return _shown(f"procrastinate, commit to start at {rate}/s", [row["took"] for row in rows])

    async def _all_started(self) -> bool:
        return not await self._fetch("SELECT FROM procrastinate_jobs WHERE status = 'todo' LIMIT 1")

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
            plain = PlainBench(await connect_temporal(Settings(temporal_address=stack.info.temporal_address)))
            rate = words.rate or await plain.sustained(words.seconds / 4)
            print(await outbox.beside(plain, rate, words.seconds), flush=True)
            print(await outbox.fill(words.waiting), flush=True)
            print(await outbox.against(plain, words.seconds / 3), flush=True)
            print(await outbox.taken(words.seconds / 2), flush=True)
            if words.depth:
                print(await outbox.deepen(words.depth), flush=True)
                print(await outbox.taken(words.seconds / 2), flush=True)
                await outbox.withdraw()
                print(await outbox.beside(plain, rate, words.seconds), flush=True)
            jobs = JobsBench(await _database(url, "jobs"))
            print(await jobs.latency(rate, words.seconds), flush=True)
            print(await jobs.started(words.waiting, words.seconds), flush=True)


async def _database(url: str, name: str) -> str:
    connection = await asyncpg.connect(url)
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    return f"{url.rsplit('/', 1)[0]}/{name}"


def main() -> None:
    """Run it as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.outbox", description=__doc__.partition(":")[0])
    parser.add_argument("--rate", type=int, help="rows a second, for the time from commit to start")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each part takes")
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--depth", type=int, default=0, help="then let so many more rows be there, say a million")
    words = parser.parse_args()
    configure_logging("error")
    asyncio.run(_measure(words))
    sys.stdout.flush()
    # Interpreter shutdown with Temporal's native threads alive can crash; everything is stopped by now.
    os._exit(0)


if __name__ == "__main__":
    main()
