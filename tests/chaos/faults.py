"""Faults of a whole `redrive up`: its processes are killed or frozen, its database refuses, it crashes as a whole."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import psutil

from redrive.connection import owner_database_url
from redrive.postgres.database import DRIVER_ERRORS
from tests.acceptance.live import Up
from tests.integration.dead_letters.processes import stopped

BACK_WITHIN = 120.0
# A worker that misses its heartbeats for six seconds has lost its step.
FROZEN_WORKER = (2.0, 10.0)
FROZEN_SERVER = (1.0, 5.0)
REFUSING = (1.0, 4.0)
SHORTEST_PAUSE = 0.5
LOCKED = "redrive.runs, redrive.dead_letters, redrive.idempotency_keys, redrive.audit_log"


class Faults:
    """Hurt a stack, one fault after another, in an order that the seed decides."""

    def __init__(self, up: Up, seed: int, longest_pause: float = 3.0) -> None:
        self.up = up
        self._longest_pause = longest_pause
        self._database_url = owner_database_url(up.settings)
        self.done: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._kinds: list[Callable[[], Awaitable[None]]] = [
            *[self.killed_worker] * 3,
            *[self.frozen_worker] * 3,
            self.killed_temporal,
            self.frozen_temporal,
            self.killed_postgres,
            self.frozen_postgres,
            self.killed_console,
            self.read_only_database,
            self.exhausted_connections,
            self.locked_tables,
            self.killed_up,
            self.crash_of_everything,
        ]

    @contextlib.asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Make trouble until the block ends; then everything is up. A stack that does not come back ends the block."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._hurt(stop))
            try:
                yield
            finally:
                stop.set()

    async def _hurt(self, stop: asyncio.Event) -> None:
        kinds: list[Callable[[], Awaitable[None]]] = []
        while not stop.is_set():
            # Each kind in turn, so that a short run has all of them.
            kinds = kinds or self._random.sample(self._kinds, len(self._kinds))
            fault = kinds.pop()
            self.done[getattr(fault, "__name__", "")] += 1
            with contextlib.suppress(psutil.NoSuchProcess, *DRIVER_ERRORS):
                await fault()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._random.uniform(SHORTEST_PAUSE, self._longest_pause))

    async def killed_worker(self) -> None:
        """Kill one worker."""
        self._kill(self._worker())

    async def frozen_worker(self) -> None:
        """Freeze one worker; it continues later, as if nothing had happened."""
        await self._frozen(self._worker(), FROZEN_WORKER)

    async def killed_temporal(self) -> None:
        """Kill the Temporal server."""
        self._kill("temporal")

    async def frozen_temporal(self) -> None:
        """Freeze the Temporal server."""
        await self._frozen("temporal", FROZEN_SERVER)

    async def killed_postgres(self) -> None:
        """Kill PostgreSQL."""
        self._kill("postgres")

    async def frozen_postgres(self) -> None:
        """Freeze PostgreSQL with all its processes."""
        await self._frozen("postgres", FROZEN_SERVER)

    async def killed_console(self) -> None:
        """Kill the console."""
        self._kill("console")

    async def read_only_database(self) -> None:
        """Make every transaction read-only."""
        async with self._owner() as connection:
            try:
                await _set_read_only(connection, "on")
                await self._wait(REFUSING)
            finally:
                await _set_read_only(connection, "off")

    async def exhausted_connections(self) -> None:
        """Take all connections that the database has."""
        async with contextlib.AsyncExitStack() as taken:
            with contextlib.suppress(*DRIVER_ERRORS):
                while True:
                    await taken.enter_async_context(self._owner())
            await self._wait(REFUSING)

    async def locked_tables(self) -> None:
        """Lock the tables, as a migration by hand does."""
        async with self._owner() as connection, connection.transaction():
            await connection.execute(f"LOCK TABLE {LOCKED} IN ACCESS EXCLUSIVE MODE")
            await self._wait(REFUSING)

    async def killed_up(self) -> None:
        """Kill `up` alone; its children end with it. Start it again."""
        self.up.process.kill()
        await self._back()

    async def crash_of_everything(self) -> None:
        """Kill every process at once, as a power failure does. Start `up` again."""
        for process in (*self.up.family(), psutil.Process(self.up.process.pid)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        await self._back()

    async def _back(self) -> None:
        await asyncio.to_thread(self.up.process.wait)
        began = time.monotonic()
        self.up.launch()
        while self.up.started() is None:
            if time.monotonic() - began > BACK_WITHIN:
                raise TimeoutError(f"redrive up is not back after {BACK_WITHIN:g} s")
            await asyncio.sleep(0.1)

    def _worker(self) -> str:
        return self._random.choice([name for name in self.up.info.children if name.startswith("worker")])

    def _kill(self, name: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.up.info.children[name], signal.SIGKILL)

    async def _frozen(self, name: str, seconds: tuple[float, float]) -> None:
        with stopped(self.up.info.children[name]):
            await self._wait(seconds)

    async def _wait(self, seconds: tuple[float, float]) -> None:
        await asyncio.sleep(self._random.uniform(*seconds))

    @contextlib.asynccontextmanager
    async def _owner(self) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
        connection = await asyncpg.connect(self._database_url, timeout=5)
        try:
            yield connection
        finally:
            connection.terminate()


async def _set_read_only(connection: "asyncpg.Connection[asyncpg.Record]", value: str) -> None:
    await connection.execute("SET default_transaction_read_only = off")
    database = await connection.fetchval("SELECT quote_ident(current_database())")
    await connection.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = {value}")
    # The setting counts for new sessions: the others are closed, and their owners open new ones.
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'redrive'"
    )
