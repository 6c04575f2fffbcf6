"""The bridge from an outbox: takes rows that are due, makes runs of them, and keeps each row up with its run.

A batch of rows is locked by one transaction (FOR UPDATE SKIP LOCKED) from the moment it is taken until its rows say
that they have their runs. If the process dies, PostgreSQL lets the rows go, and another bridge takes them: the same
key, the same run. There is nothing to expire, and any number of bridges may run side by side.

One lane at a time waits for rows (a notification, or the poll); once it has some, the next lane waits.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import asyncpg

from redrive.bridges.events.intake import Reaction, judge
from redrive.bridges.outages import Outages, Stopping, said
from redrive.bridges.outbox.follower import Follower
from redrive.bridges.outbox.handling import NotStarted, Outcome, RowHandler, Started
from redrive.errors import NotConfigured
from redrive.logs import get_logger
from redrive.outbox.rows import Outbox, OutboxEntry, call, entry_of
from redrive.postgres.database import DATABASE_ERRORS, connect
from redrive.postgres.tenancy import Connection

CHANNEL: Final = "redrive_outbox"
_RELEASE_INTERVAL: Final = timedelta(seconds=60)
_LISTEN_AGAIN: Final = timedelta(seconds=2)

log = get_logger(__name__)


@dataclass(frozen=True)
class OutboxLimits:
    """How much a bridge takes at once, and how long it waits."""

    batch: int = 50
    lanes: int = 4
    poll_interval: timedelta = timedelta(seconds=1)
    shutdown_grace: timedelta = timedelta(seconds=10)

    @property
    def held(self) -> int:
        """How many rows that are not replays it may hold."""
        return self.batch * self.lanes


class _Queue:
    """Rows of one kind: the function that takes them, and the turn of the lane that waits for them."""

    def __init__(self, function: str, batch: int) -> None:
        self.function = function
        self.batch = batch
        self.turn = asyncio.Lock()
        self.news = asyncio.Event()


class OutboxBridge:
    """Take rows of one outbox, as one of its bridges."""

    def __init__(
        self,
        outbox: Outbox,
        handler: RowHandler,
        follower: Follower,
        limits: OutboxLimits,
        ready: Callable[[], None],
    ) -> None:
        self._outbox = outbox
        self._handler = handler
        self._follower = follower
        self._limits = limits
        self._ready = ready
        self._stop = asyncio.Event()
        self._rows = _Queue("take", limits.batch)
        self._replays = _Queue("take_replays", limits.batch)
        self._source = f"outbox:{outbox.schema}"
        self._outages = Outages(self._source, self._stop, is_outage)

    def stop(self) -> None:
        """Take no more rows, and end when those that are held have their runs or have to wait."""
        self._stop.set()
        self._tell_news()

    async def run(self) -> None:
        """Take rows until `stop`."""
        helpers = [
            asyncio.create_task(self._listen()),
            asyncio.create_task(self._follow()),
            asyncio.create_task(self._release_stuck()),
        ]
        try:
            await self._outages.until_done("outbox", self._outbox.check)
            self._ready()
            log.info("bridge.started", source=self._source)
            lanes = [asyncio.create_task(self._lane(self._rows)) for _ in range(self._limits.lanes)]
            await self._watch([*lanes, asyncio.create_task(self._lane(self._replays))])
        except Stopping:
            pass
        finally:
            self.stop()
            for task in helpers:
                task.cancel()
            await asyncio.wait(helpers)
        log.info("bridge.stopped", source=self._source)

    async def _watch(self, lanes: Sequence[asyncio.Task[None]]) -> None:
        """Wait until the lanes have ended; after a stop, no longer than the grace. One that fails ends the bridge."""
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([*lanes, stopping], return_when=asyncio.FIRST_COMPLETED)
            self.stop()
            done, late = await asyncio.wait(lanes, timeout=self._limits.shutdown_grace.total_seconds())
        finally:
            for task in (*lanes, stopping):
                task.cancel()
        if late:
            await asyncio.wait(late)
        for task in done:
            await task

    async def _lane(self, queue: _Queue) -> None:
        with contextlib.suppress(Stopping):
            while not self._stop.is_set():
                await self._outages.until_done("servers", lambda: self._take_some(queue))

    async def _take_some(self, queue: _Queue) -> None:
        """Wait for a batch of rows and handle it, in one transaction."""
        pool = await self._outbox.database.pool()
        async with contextlib.AsyncExitStack() as turn:
            await turn.enter_async_context(queue.turn)
            if self._stop.is_set():
                return
            queue.news.clear()
            async with pool.acquire() as connection, connection.transaction():
                rows = await call(connection, self._outbox.schema, queue.function, queue.batch)
                if rows:
                    await turn.aclose()
                    started, outage = await self._settle(connection, [entry_of(row) for row in rows])
            if not rows:
                await self._wait_for(queue.news)
                return
        self._follower.started(started)
        if outage:
            # Only now: what the others of the batch have got is committed.
            raise outage

    async def _settle(
        self, connection: Connection, rows: Sequence[OutboxEntry]
    ) -> tuple[list[tuple[OutboxEntry, str]], Exception | None]:
        """Handle rows side by side and record the outcomes; return which started, and the outage that left others."""
        outcomes = await asyncio.gather(*map(self._handler.handle, rows), return_exceptions=True)
        pairs = list(zip(rows, outcomes, strict=True))
        started = [(row, done.run_id) for row, done in pairs if isinstance(done, Started)]
        if started:
            facts = [row.event_id for row, _ in started], [run_id for _, run_id in started]
            await call(connection, self._outbox.schema, "started", *facts)
        for row, outcome in pairs:
            if isinstance(outcome, NotStarted):
                why = (outcome.error, outcome.category, outcome.again)
                await call(connection, self._outbox.schema, "not_started", row.event_id, *why)
        return started, _first_error(outcomes)

    async def _wait_for(self, news: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.poll_interval.total_seconds()):
                await news.wait()

    def _tell_news(self) -> None:
        self._rows.news.set()
        self._replays.news.set()

    async def _listen(self) -> None:
        """Hear of new rows at once. Without this, and where a pooler is in between, the poll finds them."""
        while True:
            try:
                connection = await connect(self._outbox.url)
                try:
                    await self._hear(connection)
                finally:
                    connection.terminate()
            except DATABASE_ERRORS as error:
                log.debug("bridge.not_listening", source=self._source, error=said(error))
            await asyncio.sleep(_LISTEN_AGAIN.total_seconds())

    async def _hear(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        closed = asyncio.Event()

        def told(_: Any, __: int, ___: str, schema: object) -> None:
            if schema == self._outbox.schema:
                self._tell_news()

        connection.add_termination_listener(lambda _: closed.set())
        await connection.add_listener(CHANNEL, told)
        self._tell_news()
        await closed.wait()

    async def _follow(self) -> None:
        with contextlib.suppress(Stopping):
            while True:
                busy = await self._outages.until_done("database", self._follower.follow_some)
                if not busy:
                    await asyncio.sleep(self._follower.interval.total_seconds())

    async def _release_stuck(self) -> None:
        while True:
            try:
                pool = await self._outbox.database.pool()
                ((count,),) = await call(pool, self._outbox.schema, "release_stuck")
                if count:
                    log.info("outbox.released", source=self._source, count=count)
            except DATABASE_ERRORS as error:
                log.debug("outbox.not_released", source=self._source, error=said(error))
            await asyncio.sleep(_RELEASE_INTERVAL.total_seconds())


def _first_error(outcomes: Sequence[Outcome | BaseException]) -> Exception | None:
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            return outcome
        if isinstance(outcome, BaseException):
            raise outcome
    return None


def is_outage(error: Exception) -> bool:
    """Tell whether waiting may help: a database or Temporal that does not answer. Not a missing outbox."""
    return not isinstance(error, NotConfigured) and judge(error) is Reaction.WAIT
