"""How fast rows of an outbox become runs, beside plain starts and Procrastinate: `python -m tests.bench.outbox`.

No worker takes the runs: a run is started when Temporal has accepted it, and that is what is measured.
- from the commit to the start at a steady rate, and from the call to the answer of a plain start, in turns. The rate is
  the highest of RATES that plain starts sustain, or those that are given. With `--depth`, also by an outbox that has so
  many rows that are not due yet, as many that are delivered, and as many that were withdrawn;
- the same with starts that take a fixed time and reach no Temporal: what the outbox itself adds;
- starts a second by one bridge with many rows waiting, and plain `start_workflow` calls, in turns on the same servers;
- rows a second that the bridge's own transactions take over, without Temporal, also with `--depth` more that are due;
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
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import asyncpg
import procrastinate
import psutil
from temporalio.client import Client

import redrive.outbox
from redrive.connection import connect_temporal
from redrive.contracts import RunInput, Workflow
from redrive.logs import configure_logging
from redrive.outbox.rows import call, install
from redrive.settings import Settings
from redrive.starter.stack.programs import worker_environment
from redrive.starter.stack.stack import Stack
from tests.bench.measure import Cpu, cpu_of, in_turn, spread, used
from tests.bench.outbox_jobs import URL
from tests.bench.outbox_simulated import START
from tests.conftest import eventually, owner_url

LANES, BATCH = 8, 25
AT_ONCE = 50
ROUNDS = 3
RATES = (200, 150, 100, 50, 25)
# A rate is sustained if the worst of a hundred starts is answered within this.
SUSTAINED = 0.25
P50, P99 = 49, 98
# Temporal does not limit these.
SIMULATED_RATE = 200
EMPTY, DEEP = "redrive", "deep"
PARTS = ("latency", "simulated", "starts", "taken", "procrastinate")
_ROWS = """
    INSERT INTO {schema}.outbox (pipeline, key, payload, status, run_after, run_id, started_at, ended_at, deleted_at)
    SELECT 'hello', kind || number, '{{"name": "Ada"}}', CASE kind WHEN 'delivered' THEN kind ELSE 'pending' END,
        now() + CASE kind WHEN 'later' THEN interval '1 day' ELSE interval '-1 hour' END,
        CASE kind WHEN 'delivered' THEN 'run-' || number END,
        CASE kind WHEN 'delivered' THEN now() END, CASE kind WHEN 'delivered' THEN now() END,
        CASE kind WHEN 'withdrawn' THEN now() END
    FROM generate_series(1, $1::integer) AS number, unnest($2::text[]) AS kind
"""
START_TIME = 60.0

Latency = Callable[[int, float], Awaitable[list[float]]]


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
) -> AsyncIterator[psutil.Process]:
    """Run a program beside us, from when it is ready."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *command), env=environment, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        await eventually(ready, within=START_TIME)
        yield psutil.Process(process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await process.wait()


class OutboxBench:
    """An outbox of a stack without workers: a run is started, and nobody executes it."""

    def __init__(self, stack: Stack, state: Path, schema: str) -> None:
        self._url = owner_url(stack.info)
        self._schema = schema
        self._postgres = psutil.Process(stack.info.children["postgres"])
        self._environment = worker_environment(stack.info, state_dir=state, embedded_temporal=True) | {
            "REDRIVE_LOG_LEVEL": "error",
            "REDRIVE_READY_FILE": str(state / f"{schema}-ready"),
            "REDRIVE_OUTBOX_SCHEMA": schema,
        }

    async def install(self) -> None:
        """Make the outbox."""
        await install(self._url, self._schema)

    @contextlib.asynccontextmanager
    async def bridge(self, *, simulated: bool = False) -> AsyncIterator[psutil.Process]:
        """Run a bridge that has taken its first rows, which open its connections."""
        async with self._bridge(simulated=simulated) as process:
            await self.latency(rate=10, seconds=1.0)
            yield process

    @contextlib.asynccontextmanager
    async def _bridge(self, *, simulated: bool = False) -> AsyncIterator[psutil.Process]:
        file = Path(self._environment["REDRIVE_READY_FILE"])
        file.unlink(missing_ok=True)
        command = ("tests.bench.outbox_simulated",) if simulated else ("redrive.starter.cli.main", "bridge", "outbox")
        ready = partial(asyncio.to_thread, file.exists)
        async with _process("-m", *command, environment=self._environment, ready=ready) as process:
            yield process

    def cpu(self, bridge: psutil.Process) -> Cpu:
        """Return the CPU that a bridge and PostgreSQL have used."""
        return {"bridge": cpu_of(bridge), "PostgreSQL": cpu_of(self._postgres)}

    async def latency(self, rate: int, seconds: float) -> list[float]:
        """Return how long after its commit a row has its run, at a steady rate."""
        connection = await asyncpg.connect(self._url)
        committed: dict[str, float] = {}
        async for _ in _paced(rate, seconds):
            event_id = await redrive.outbox.enqueue(connection, "hello", {"name": "Ada"}, schema=self._schema)
            committed[str(event_id)] = time.time()
        await self._until_started(connection, list(committed))
        rows = await connection.fetch(
            "SELECT event_id::text, extract(epoch FROM started_at)::float8 AS at, last_error "  # noqa: S608
            f"FROM {self._schema}.outbox WHERE event_id = ANY ($1::uuid[])",
            list(committed),
        )
        await self._end(connection)
        await connection.close()
        failed = [row["last_error"] for row in rows if row["at"] is None]
        assert not failed, failed
        return [row["at"] - committed[row["event_id"]] for row in rows]

    async def _end(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        """Let the runs be over. No worker executes them, and a bridge would go on to ask about all of them."""
        await connection.execute(
            f"UPDATE {self._schema}.outbox SET status = 'delivered', ended_at = now(), check_at = NULL "  # noqa: S608
            "WHERE check_at IS NOT NULL"
        )

    async def _until_started(self, connection: "asyncpg.Connection[asyncpg.Record]", ids: list[str]) -> None:
        """Wait for the last run. At a rate that Temporal cannot take on this machine, that is long after the commit."""
        query = f"SELECT FROM {self._schema}.outbox WHERE event_id = ANY ($1::uuid[]) AND status = 'pending' LIMIT 1"

        async def all_started() -> bool:
            return not await connection.fetch(query, ids)

        await eventually(all_started, within=300)

    async def fill(self, count: int) -> str:
        """Let so many rows wait, each made by enqueue()."""
        connection = await asyncpg.connect(self._url)
        begin = time.monotonic()
        await connection.execute(
            f"""SELECT count({self._schema}.enqueue('hello', '{{"name": "Ada"}}')) FROM generate_series(1, $1::int)""",  # noqa: S608
            count,
        )
        took = time.monotonic() - begin
        await connection.execute(f"ANALYZE {self._schema}.outbox")
        await connection.close()
        return f"redrive, enqueue() in one transaction: {count / took:.0f} rows/s"

    async def rate(self, seconds: float) -> float:
        """Return how many rows a second get their runs from one bridge, once it has begun."""
        connection = await asyncpg.connect(self._url)
        query = f"SELECT count(*) FROM {self._schema}.outbox WHERE started_at > to_timestamp($1)"  # noqa: S608
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

    async def deepen(self, count: int, *kinds: str) -> str:
        """Let so many more rows of each kind be there, and PostgreSQL be done with them: later it would, by itself."""
        begin = time.monotonic()
        connection = await asyncpg.connect(self._url)
        await connection.execute(_ROWS.format(schema=self._schema), count, kinds, timeout=600)
        await connection.execute(f"VACUUM ANALYZE {self._schema}.outbox", timeout=600)
        await connection.execute("CHECKPOINT", timeout=600)
        await connection.close()
        return f"{count} more rows each: {', '.join(kinds)} ({time.monotonic() - begin:.0f} s, vacuumed)"

    async def taken(self, seconds: float) -> str:
        """Return how many rows a second a bridge's own transactions take over, without Temporal."""
        done, begin = 0, time.monotonic()

        async def lane() -> None:
            nonlocal done
            connection = await asyncpg.connect(self._url)
            place: tuple[object, ...] = ()
            while time.monotonic() - begin < seconds:
                async with connection.transaction():
                    rows = await call(connection, self._schema, "take", BATCH, *place)
                    place = (rows[-1]["run_after"], rows[-1]["position"]) if rows else ()
                    ids = [row["event_id"] for row in rows]
                    await call(
                        connection, self._schema, "started", ids, [f"run-{each}" for each in ids], [0.0] * len(ids)
                    )
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


@dataclass
class Turns:
    """What a contender did in its turns, round by round."""

    latency: Latency
    cpu: Callable[[], Cpu]
    took: list[list[float]] = field(default_factory=list)
    spent: list[Cpu] = field(default_factory=list)

    async def take(self, rate: int, seconds: float) -> None:
        """Take one turn."""
        before = self.cpu()
        self.took.append(await self.latency(rate, seconds))
        self.spent.append(used(before, self.cpu()))

    def cut(self, which: int) -> list[float]:
        """Return a percentile of each round."""
        return [statistics.quantiles(took, n=100)[which] for took in self.took]

    def shown(self, name: str) -> str:
        """Return the percentiles over all rounds, and the CPU for one."""
        all_of_them = [each for took in self.took for each in took]
        cpu = {who: sum(one[who] for one in self.spent) * 1000 / len(all_of_them) for who in self.spent[0]}
        told = ", ".join(f"{who} {spent:.1f} ms" for who, spent in cpu.items())
        return _shown(name, all_of_them) + (f"; CPU of each: {told}" if told else "")


async def _in_turns(contenders: dict[str, Turns], rate: int, seconds: float) -> str:
    """Return how long starts take by each contender at a steady rate; the first is what others are compared with."""
    for number in range(ROUNDS):
        for name in in_turn(contenders, number):
            await contenders[name].take(rate, seconds / ROUNDS)
    first = next(iter(contenders))
    lines = [each.shown(f"{name}, at {rate}/s") for name, each in contenders.items()]
    lines += [
        f"{name}, of {first}: p50 {spread(each.cut(P50), contenders[first].cut(P50))}, "
        f"p99 {spread(each.cut(P99), contenders[first].cut(P99))}"
        for name, each in contenders.items()
        if name != first
    ]
    return "\n".join(lines)


@dataclass(frozen=True)
class Scene:
    """The servers, and the outboxes on them."""

    words: argparse.Namespace
    plain: PlainBench
    empty: OutboxBench
    deep: OutboxBench
    url: str

    async def measure(self) -> None:
        """Measure what is asked for."""
        words = self.words
        rates = words.rate or ([await self.plain.sustained(words.seconds / 4)] if self._has("latency") else [RATES[-1]])
        if words.depth and (self._has("latency") or self._has("simulated")):
            print(await self.deep.deepen(words.depth, "later", "delivered", "withdrawn"), flush=True)
        if self._has("latency"):
            await self._latencies(rates, simulated=False)
        if self._has("simulated"):
            await self._latencies([SIMULATED_RATE], simulated=True)
        if self._has("starts") or self._has("taken"):
            print(await self.empty.fill(words.waiting), flush=True)
        if self._has("starts"):
            print(await self.empty.against(self.plain, words.seconds / 3), flush=True)
        if self._has("taken"):
            await self._taken()
        if self._has("procrastinate"):
            jobs = JobsBench(await _database(self.url, "jobs"))
            for rate in rates:
                print(await jobs.latency(rate, words.seconds), flush=True)
            print(await jobs.started(words.waiting, words.seconds), flush=True)

    def _has(self, part: str) -> bool:
        return not self.words.only or part in self.words.only

    async def _latencies(self, rates: Sequence[int], *, simulated: bool) -> None:
        outboxes = {"outbox": self.empty}
        if self.words.depth:
            outboxes[f"outbox of {self.words.depth} rows of three kinds"] = self.deep
        async with contextlib.AsyncExitStack() as bridges:
            contenders: dict[str, Turns] = {} if simulated else {"plain start": Turns(self.plain.latency, dict)}
            for name, outbox in outboxes.items():
                process = await bridges.enter_async_context(outbox.bridge(simulated=simulated))
                title = f"{name}, starts of {START.total_seconds() * 1000:.0f} ms" if simulated else name
                contenders[title] = Turns(outbox.latency, partial(outbox.cpu, process))
            for rate in rates:
                print(await _in_turns(contenders, rate, self.words.seconds), flush=True)
                contenders = {name: Turns(each.latency, each.cpu) for name, each in contenders.items()}

    async def _taken(self) -> None:
        seconds = self.words.seconds / 2
        print(await self.empty.taken(seconds), flush=True)
        if self.words.depth:
            print(await self.empty.deepen(self.words.depth, "due", "later", "delivered"), flush=True)
            print(await self.empty.taken(seconds), flush=True)


async def _measure(words: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="redrive-bench-", ignore_cleanup_errors=True) as directory:
        state = Path(directory)
        # PostgreSQL does not run as root: its account has to get through here.
        state.chmod(0o711)
        async with Stack(Settings(), state_dir=state / "state", workers=0) as stack:
            empty, deep = (OutboxBench(stack, state, schema) for schema in (EMPTY, DEEP))
            await empty.install()
            await deep.install()
            plain = PlainBench(await connect_temporal(Settings(temporal_address=stack.info.temporal_address)))
            await Scene(words, plain, empty, deep, owner_url(stack.info)).measure()


async def _database(url: str, name: str) -> str:
    connection = await asyncpg.connect(url)
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    return f"{url.rsplit('/', 1)[0]}/{name}"


def main() -> None:
    """Run it as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.outbox", description=__doc__.partition(":")[0])
    parser.add_argument("--rate", type=int, nargs="+", help="rows a second, for the time from commit to start")
    parser.add_argument("--only", choices=PARTS, nargs="+", help="only these parts")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each part takes")
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--depth", type=int, default=0, help="so many more rows of each kind, say a million")
    words = parser.parse_args()
    configure_logging("error")
    asyncio.run(_measure(words))
    sys.stdout.flush()
    # Interpreter shutdown with Temporal's native threads alive can crash; everything is stopped by now.
    os._exit(0)


if __name__ == "__main__":
    main()
