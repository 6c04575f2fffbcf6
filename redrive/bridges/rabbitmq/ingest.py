"""The retry scheduler's ingest: RetryMessages from RabbitMQ into Postgres, acknowledged once they are stored.

The broker hands over at most `PREFETCH` unacknowledged messages, and we take as many bytes of them as there is room
for. They are stored in batches of what arrives in a moment, so that a batch grows with the load. A process that dies,
at any line, leaves each message stored, with the broker, or both; what is stored twice is one row.
"""

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import asyncpg
from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage

from redrive.bridges.health import Health
from redrive.bridges.labels import tenant_name
from redrive.bridges.rabbitmq.connection import BROKER_ERRORS, Room, connected, ensure_queue, open_limited, reason
from redrive.bridges.rabbitmq.messages import TENANT, Malformed, dead_malformed, error_text, read_retry
from redrive.bridges.rabbitmq.metrics import RetryMetrics
from redrive.bridges.rabbitmq.settings import RetrySettings
from redrive.contracts import MIB
from redrive.errors import Unavailable
from redrive.logs import get_logger
from redrive.postgres.database import DATABASE_ERRORS, Database
from redrive.postgres.tenancy import QUARANTINE, go_over_to, transaction
from redrive.redaction.redactor import Redactor
from redrive.store.messages.dead import NewDeadMessage, put_dead
from redrive.store.messages.retry_queue import NewRetry, put_retries
from redrive.tracing import span

log = get_logger(__name__)

PREFETCH: Final = 1000
# How long a batch is collected. A retry waits far longer, and each batch costs an fsync.
GATHER: Final = 0.02
PAUSE: Final = 1.0
BROKER: Final = "rabbitmq"
DATABASE: Final = "postgres"
# Errors that a row itself causes. All others are the database's, and pass.
_BAD_ROW: Final = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.ProgramLimitExceededError)

# A header of quorum queues: how often a message came back because its consumer died or disconnected.
DELIVERIES: Final = "x-delivery-count"
MOST_DELIVERIES: Final = 10
# Larger messages are parsed in a thread, so that the event loop is not blocked.
LONG: Final = MIB


@dataclass(frozen=True)
class _Delivery:
    """A message as it is held until it is stored. If it is too large, the body is its beginning."""

    tag: int
    body: bytes
    size: int
    tenant: str | None
    deliveries: int
    carrier: dict[str, str]

    @property
    def full_size(self) -> int | None:
        return self.size if len(self.body) < self.size else None


Inbox = asyncio.Queue[_Delivery | None]


@dataclass(frozen=True)
class _Read:
    """A delivery that was read: a retry, or a dead message."""

    message: _Delivery
    retry: NewRetry | None
    dead: NewDeadMessage | None

    @property
    def dead_of(self) -> str:
        """The tenant of a dead message: the one that its headers name, or the quarantine."""
        return self.message.tenant or QUARANTINE


class RetryIngest:
    """Take messages from the retry queue until told to stop; reconnect whenever the broker goes down."""

    def __init__(
        self,
        url: str,
        settings: RetrySettings,
        database: Database,
        *,
        tenant: str,
        metrics: RetryMetrics,
        health: Health,
        redactor: Redactor,
    ) -> None:
        self._url = url
        self._settings = settings
        self._policy = settings.policy
        self._database = database
        self._tenant = tenant
        self._metrics = metrics
        self._health = health
        self._redactor = redactor
        self._stopping = asyncio.Event()
        self._inbox: Inbox = asyncio.Queue()

    def stop(self) -> None:
        """Take no more; `run` returns when the current batch is stored and acknowledged."""
        self._stopping.set()
        self._inbox.put_nowait(None)

    async def run(self) -> None:
        """Take messages until stopped."""
        while not self._stopping.is_set():
            try:
                async with connected(self._url, f"{self._settings.service_name} ingest") as connection:
                    await self._take(connection)
                why = "the broker ended the consumer"
            except Unavailable as error:
                why = str(error)
            except BROKER_ERRORS as error:
                why = reason(error)
            if not self._stopping.is_set():
                self._health.down(BROKER, why)
                log.warning("bridge.disconnected", source=BROKER, error=why)
                await self._pause()

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), PAUSE)

    async def _take(self, connection: AbstractConnection) -> None:
        """Store and acknowledge what arrives on one connection, until it closes or we stop."""
        for queue in (self._settings.retry_queue, self._settings.manual_review_queue):
            await ensure_queue(connection, queue)
        # What the last connection left belongs to the broker again.
        self._inbox = asyncio.Queue()
        if self._stopping.is_set():
            return
        room = Room(self._settings.max_held_bytes)
        channel = await open_limited(connection, room)
        await self._consume(channel, self._inbox, room)
        self._health.up(BROKER)
        log.info("bridge.connected", source=BROKER)
        while batch := await self._batch():
            with self._storing(batch):
                await self._store_with_retries(batch)
            # Acknowledging one delivery number acknowledges all before it.
            await channel.basic_ack(batch[-1].message.tag, multiple=True)
            room.give(sum(len(read.message.body) for read in batch))

    def _storing(self, batch: list[_Read]) -> contextlib.AbstractContextManager[None]:
        """Open the span of a batch, with a link to the trace of each message that names one."""
        traces = (read.message.carrier for read in batch)
        queue = self._settings.retry_queue
        return span(
            "retry.store", "consumer", carrier={}, links=traces, count=len(batch), source=queue, tenant_id=self._tenant
        )

    async def _consume(self, channel: AbstractChannel, inbox: Inbox, room: Room) -> None:
        def end(*_: object) -> None:
            inbox.put_nowait(None)

        channel.closing.add_done_callback(end)
        channel.on_consumer_cancel_callbacks.add(end)
        await channel.basic_qos(prefetch_count=PREFETCH)

        async def receive(message: DeliveredMessage) -> None:
            delivery = self._delivery(message)
            room.take(len(delivery.body))
            inbox.put_nowait(delivery)

        await channel.basic_consume(self._settings.retry_queue, receive)

    async def _batch(self) -> list[_Read]:
        """Wait for messages and return what arrived; nothing if the connection closed or we are to stop."""
        messages = [await self._inbox.get()]
        await asyncio.sleep(GATHER)
        while not self._inbox.empty():
            messages.append(self._inbox.get_nowait())
        # The end is left for the next call: what came before it is valid.
        taken = [message for message in messages if message is not None]
        if len(taken) < len(messages):
            self._inbox.put_nowait(None)
        return [await self._read_aside(message) for message in taken]

    def _delivery(self, message: DeliveredMessage) -> _Delivery:
        """Return what is held of a message: its size is checked before its content is read."""
        body, headers = message.body, message.header.properties.headers or {}
        trace, deliveries = headers.get("traceparent"), headers.get(DELIVERIES)
        return _Delivery(
            tag=message.delivery_tag or 0,
            body=body if len(body) <= self._settings.max_message_bytes else body[: self._settings.kept_message_bytes],
            size=len(body),
            tenant=tenant_name(headers.get(TENANT)),
            deliveries=deliveries if isinstance(deliveries, int) else 0,
            carrier={"traceparent": trace} if isinstance(trace, str) else {},
        )

    async def _read_aside(self, message: _Delivery) -> _Read:
        if len(message.body) > LONG:
            return await asyncio.to_thread(self._read, message)
        return self._read(message)

    def _read(self, message: _Delivery) -> _Read:
        if message.full_size is not None:
            limit = self._settings.max_message_bytes
            return self._malformed(message, f"{message.size} bytes; the limit is {limit} (MAX_MESSAGE_BYTES)")
        if message.deliveries >= MOST_DELIVERIES:
            why = f"delivered {message.deliveries} times and never stored: its consumers died or gave it up"
            return self._malformed(message, why)
        try:
            retry = read_retry(
                message.body,
                policy=self._policy,
                default_max_retries=self._settings.default_max_retries,
                now=datetime.now(UTC),
                draw=random.random(),  # noqa: S311  # a jitter, not a secret
                redactor=self._redactor,
            )
        except Malformed as error:
            return self._malformed(message, str(error))
        return _Read(message, retry, None)

    def _malformed(self, message: _Delivery, why: str) -> _Read:
        # The reason quotes what was sent, so it is redacted.
        settings, why = self._settings, error_text(why, self._redactor)
        dead = dead_malformed(
            message.body,
            settings.retry_queue,
            why,
            max_retries=settings.default_max_retries,
            full_size=message.full_size,
        )
        log.warning("message.malformed", event_id=str(dead.message_id), source=settings.retry_queue, error=why)
        return _Read(message, None, dead)

    async def _store_with_retries(self, batch: list[_Read]) -> None:
        """Store a batch, however long the database is down: until then nothing is acknowledged."""
        while True:
            try:
                await self._store(batch)
            except _BAD_ROW as error:
                await self._store_apart(batch, error)
            except DATABASE_ERRORS as error:
                why = str(error) or type(error).__name__
                self._health.down(DATABASE, why)
                log.warning("bridge.waiting", operation="database", error=why, error_type=type(error).__name__)
                await asyncio.sleep(PAUSE)
                continue
            self._health.up(DATABASE)
            return

    async def _store(self, batch: list[_Read]) -> None:
        retries = [read.retry for read in batch if read.retry]
        dead: dict[str, list[NewDeadMessage]] = {}
        for read in batch:
            if read.dead:
                dead.setdefault(read.dead_of, []).append(read.dead)
        stored: Counter[str] = Counter()
        async with transaction(await self._database.pool(), self._tenant) as connection:
            if retries:
                stored = await put_retries(connection, self._tenant, retries)
            # Sorted by name, so that two writers never deadlock.
            for owner, messages in sorted(dead.items()):
                await go_over_to(connection, owner)
                await put_dead(connection, owner, self._settings.retry_queue, messages)
        self._metrics.scheduled(stored)
        self._metrics.malformed(sum(map(len, dead.values())))

    async def _store_apart(self, batch: list[_Read], error: asyncpg.PostgresError) -> None:
        """Halve a batch that the database refuses until the refused message is found."""
        if len(batch) > 1:
            middle = len(batch) // 2
            await self._store_with_retries(batch[:middle])
            await self._store_with_retries(batch[middle:])
        elif batch[0].retry is None:
            raise error
        else:
            await self._store_with_retries([self._malformed(batch[0].message, f"cannot be stored: {error}")])
