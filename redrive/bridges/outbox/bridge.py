"""The bridge from an outbox: takes rows that are due, makes runs of them, and keeps each row up with its run.

A row is locked by a transaction (FOR UPDATE SKIP LOCKED) from the moment it is taken until it says that it has its run.
If the process dies, PostgreSQL lets its rows go, and another bridge takes them: the same key, the same run. There is
nothing to expire, and any number of bridges may run side by side.

One lane at a time takes rows, by a transaction: those that are there, and those that come until the first of them has
its run. Then the next lane takes, while this one waits for the rest of its rows, records them and commits.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import asyncpg

from redrive.bridges.events.intake import Reaction, judge
from redrive.bridges.outages import Outages, Stopping, said
from redrive.bridges.outbox.batch import Batch
from redrive.bridges.outbox.follower import Follower
from redrive.bridges.outbox.handling import NotStarted, Outcome, RowHandler, Started
from redrive.bridges.outbox.row_queue import Place, RowQueue, place_of
from redrive.errors import NotConfigured
from redrive.logs import get_logger
from redrive.outbox.rows import Outbox, OutboxEntry, call, entry_of
from redrive.postgres.database import DATABASE_ERRORS, connect
from redrive.postgres.tenancy import Connection

CHANNEL: Final = "redrive_outbox"
_RELEASE_INTERVAL: Final = timedelta(seconds=60)
_LISTEN_AGAIN: Final = timedelta(seconds=2)
# Searching takes at most a tenth of the time, however many rows there are to pass over.
_SEARCH_PAUSE_FACTOR: Final = 9

log = get_logger(__name__)


@dataclass(frozen=True)
class OutboxLimits:
    """How much a bridge takes at once, and how long it waits."""

    batch: int = 25
    lanes: int = 8
    poll_interval: timedelta = timedelta(seconds=1)
    shutdown_grace: timedelta = timedelta(seconds=10)

    @property
    def held(self) -> int:
        """How many rows that are not replays it may hold."""
        return self.batch * self.lanes


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
        self._rows = RowQueue("take")
        self._replays = RowQueue("take_replays")
        self._source = f"outbox:{outbox.schema}"
        self._outages = Outages(self._source, self._stop, is_outage)

    def stop(self) -> None:
        """Take no more rows, and end when those that are held have their runs or have to wait."""
        self._stop.set()
        for queue in (self._rows, self._replays):
            queue.wake()
            queue.tell(None)

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
            lanes = [self._lane(self._rows) for _ in range(self._limits.lanes)]
            others = (self._lane(self._replays), self._search(self._rows), self._search(self._replays))
            await self._watch([asyncio.create_task(each) for each in (*lanes, *others)], helpers)
        except Stopping:
            pass
        finally:
            self.stop()
            for task in helpers:
                task.cancel()
            await asyncio.wait(helpers)
        log.info("bridge.stopped", source=self._source)

    async def _watch(self, lanes: Sequence[asyncio.Task[None]], helpers: Sequence[asyncio.Task[None]]) -> None:
        """Wait until lanes have ended; after a stop, no longer than the grace. Whatever fails ends the bridge."""
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([*lanes, *helpers, stopping], return_when=asyncio.FIRST_COMPLETED)
            self.stop()
            done, late = await asyncio.wait(lanes, timeout=self._limits.shutdown_grace.total_seconds())
        finally:
            for task in (*lanes, stopping):
                task.cancel()
        if late:
            await asyncio.wait(late)
        for task in (*done, *(helper for helper in helpers if helper.done())):
            await task

    async def _lane(self, queue: RowQueue) -> None:
        with contextlib.suppress(Stopping):
            while not self._stop.is_set():
                await self._outages.until_done("servers", lambda: self._take_some(queue))

    async def _take_some(self, queue: RowQueue) -> None:
        """Wait for rows and handle a batch of them, in one transaction."""
        async with contextlib.AsyncExitStack() as turn:
            await turn.enter_async_context(queue.turn)
            if not self._stop.is_set():
                await queue.wait()
            if self._stop.is_set():
                return
            try:
                await self._handle_some(queue, turn)
            except BaseException:
                # Its rows are unlocked again.
                queue.tell(None)
                raise

    async def _handle_some(self, queue: RowQueue, turn: contextlib.AsyncExitStack) -> None:
        pool = await self._outbox.database.pool()
        async with pool.acquire() as connection, connection.transaction():
            batch = Batch(self._handler)
            try:
                await self._fill(batch, connection, queue)
                await turn.aclose()
                outcomes = await batch.outcomes()
            finally:
                batch.cancel()
            await self._record(connection, outcomes)
        self._follower.started([(row, done.run_id) for row, done in outcomes if isinstance(done, Started)])
        for _, outcome in outcomes:
            if isinstance(outcome, Exception):
                # Only now: what the others of the batch have got is committed.
                raise outcome

    async def _fill(self, batch: Batch, connection: Connection, queue: RowQueue) -> None:
        """Take rows, and more as they come until one of them is answered: those that come wait for no slow start."""
        while True:
            if (place := queue.next_place()) is not None:
                batch.add(await self._look(connection, queue, place, self._limits.batch - len(batch)))
            if not batch or len(batch) == self._limits.batch or self._stop.is_set():
                return
            await queue.wait(batch)
            if batch.is_answered:
                return

    async def _look(self, connection: Connection, queue: RowQueue, place: Place, limit: int) -> list[OutboxEntry]:
        rows = [entry_of(row) for row in await call(connection, self._outbox.schema, queue.function, limit, *place)]
        if len(rows) == limit:
            queue.tell(Place(rows[-1].run_after, rows[-1].position))
        return rows

    async def _record(
        self, connection: Connection, outcomes: Sequence[tuple[OutboxEntry, Outcome | Exception]]
    ) -> None:
        started = [(row.event_id, done.run_id, done.ago()) for row, done in outcomes if isinstance(done, Started)]
        if started:
            await call(connection, self._outbox.schema, "started", *map(list, zip(*started, strict=True)))
        for row, outcome in outcomes:
            if isinstance(outcome, NotStarted):
                why = (outcome.error, outcome.category, outcome.again)
                await call(connection, self._outbox.schema, "not_started", row.event_id, *why)

    async def _search(self, queue: RowQueue) -> None:
        """Look from the beginning for the first row that can be taken, and have the lanes go on there."""
        with contextlib.suppress(Stopping):
            while not self._stop.is_set():
                pause = await self._outages.until_done("outbox", lambda: self._search_once(queue))
                await queue.pause_search(pause)

    async def _search_once(self, queue: RowQueue) -> float:
        begin = time.monotonic()
        # Outside a transaction: the row is unlocked at once.
        found = await call(await self._outbox.database.pool(), self._outbox.schema, queue.function, 1)
        for row in found:
            queue.tell(Place(row["run_after"], row["position"] - 1))
        return max(self._limits.poll_interval.total_seconds(), _SEARCH_PAUSE_FACTOR * (time.monotonic() - begin))

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

        def told(_: Any, __: int, ___: str, payload: object) -> None:
            schema, _, news = str(payload).partition(" ")
            if schema == self._outbox.schema:
                kind, _, seconds = news.partition(" ")
                (self._replays if kind == "replays" else self._rows).tell(place_of(seconds))

        connection.add_termination_listener(lambda _: closed.set())
        await connection.add_listener(CHANNEL, told)
        for queue in (self._rows, self._replays):
            queue.tell(None)
        await closed.wait()

    async def _follow(self) -> None:
        with contextlib.suppress(Stopping):
            while True:
                pause = await self._outages.until_done("database", self._follower.follow_some)
                await asyncio.sleep(pause)

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


def is_outage(error: Exception) -> bool:
    """Tell whether waiting may help: a database or Temporal that does not answer. Not a missing outbox."""
    return not isinstance(error, NotConfigured) and judge(error) is Reaction.WAIT
