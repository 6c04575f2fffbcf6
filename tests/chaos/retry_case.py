"""Messages that are to be sent again, counted one by one: what was asked for, what came back, what is still there."""

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field

import aiormq
import asyncpg
from aiormq.abc import AbstractChannel, DeliveredMessage
from pamqp import commands

from redrive.bridges.rabbitmq.connection import BROKER_ERRORS
from redrive.bridges.rabbitmq.retry_message_pb2 import RetryMessage

# Every so many is one whose retries are used up.
EXHAUSTED_EVERY = 20
AT_ONCE = 500
PREFETCH = 500
PAUSE = 0.2
PERSISTENT = 2
MAX_RETRIES = 3


@dataclass
class RetryCase:
    """So many messages through one retry scheduler."""

    url: str
    database_url: str
    tenant: str
    retry_queue: str
    review_queue: str
    work_queue: str
    sent: set[str] = field(default_factory=set)
    sent_again: int = 0
    arrived: Counter[str] = field(default_factory=Counter)
    reviewed: Counter[str] = field(default_factory=Counter)

    async def make_queues(self) -> None:
        """Make the queues that messages come from and go to."""
        async with self._channel() as channel:
            for queue in (self.retry_queue, self.review_queue, self.work_queue):
                await channel.queue_declare(queue, durable=True)

    async def send(self, count: int) -> None:
        """Ask for so many more retries; every one until the broker has confirmed it."""
        first = len(self.sent)
        bodies = {number: self._message(number) for number in range(first, first + count)}
        self.sent.update(self._id(number) for number in bodies)
        for start in range(first, first + count, AT_ONCE):
            await self._insist([bodies[number] for number in bodies if start <= number < start + AT_ONCE])

    async def _insist(self, bodies: Sequence[bytes]) -> None:
        waiting = list(bodies)
        while waiting:
            with contextlib.suppress(*BROKER_ERRORS):
                async with self._channel() as channel:
                    answers = await asyncio.gather(
                        *(self._publish(channel, body) for body in waiting), return_exceptions=True
                    )
                waiting = [body for body, answer in zip(waiting, answers, strict=True) if answer is not None]
            if waiting:
                self.sent_again += len(waiting)
                await asyncio.sleep(PAUSE)

    async def _publish(self, channel: AbstractChannel, body: bytes) -> None:
        properties = commands.Basic.Properties(delivery_mode=PERSISTENT)
        await channel.basic_publish(body, routing_key=self.retry_queue, mandatory=True, properties=properties)

    @contextlib.asynccontextmanager
    async def receiving(self) -> AsyncIterator[None]:
        """Take what comes back while the block lasts, however often the broker goes away."""
        tasks = [
            asyncio.create_task(self._receive(self.work_queue, self.arrived)),
            asyncio.create_task(self._receive(self.review_queue, self.reviewed)),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive(self, queue: str, found: Counter[str]) -> None:
        while True:
            with contextlib.suppress(*BROKER_ERRORS):
                async with self._channel() as channel:
                    await channel.basic_qos(prefetch_count=PREFETCH)

                    async def take(message: DeliveredMessage) -> None:
                        found[str(message.header.properties.message_id)] += 1
                        await message.channel.basic_ack(message.delivery_tag or 0, wait=False)

                    await channel.basic_consume(queue, take)
                    await asyncio.wait({channel.closing})
            await asyncio.sleep(PAUSE)

    async def until_all_came(self) -> None:
        """Wait until every message is where it belongs."""
        while not self.is_done:  # noqa: ASYNC110  # it happens in other processes
            await asyncio.sleep(PAUSE)

    @property
    def is_done(self) -> bool:
        """Tell whether every message is where it belongs."""
        return self.arrived.keys() >= self._wanted(used_up=False) and self.reviewed.keys() >= self._wanted(used_up=True)

    @property
    def duplicates(self) -> int:
        """How many messages came more often than once, counted by how often."""
        return sum(self.arrived.values()) - len(self.arrived) + sum(self.reviewed.values()) - len(self.reviewed)

    async def violations(self) -> list[str]:
        """Compare what came back, and what is left, with what was asked for."""
        problems = [f"{one} never came back" for one in self._wanted(used_up=False) - self.arrived.keys()]
        problems += [f"{one} was never reviewed" for one in self._wanted(used_up=True) - self.reviewed.keys()]
        problems += [f"{one} came, but nobody sent it" for one in self.arrived.keys() - self._wanted(used_up=False)]
        problems += [f"{one} was given up too early" for one in self.reviewed.keys() - self._wanted(used_up=True)]
        connection = await asyncpg.connect(self.database_url)
        try:
            left = await connection.fetchval("SELECT count(*) FROM redrive.retry_queue WHERE tenant = $1", self.tenant)
            rows = await connection.fetch("SELECT message_id FROM redrive.dead_messages WHERE tenant = $1", self.tenant)
        finally:
            await connection.close()
        problems += [f"{left} messages still wait"] if left else []
        dead = {str(row["message_id"]) for row in rows}
        problems += [f"{one}: given up, but without a record" for one in self._wanted(used_up=True) - dead]
        return problems + [f"{one}: a record that nobody asked for" for one in dead - self._wanted(used_up=True)]

    async def until_nothing_waits(self) -> None:
        """Wait until the table is empty: a duplicate may come behind the last message."""
        while True:
            with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection = await asyncpg.connect(self.database_url)
                try:
                    query = "SELECT count(*) FROM redrive.retry_queue WHERE tenant = $1"
                    if not await connection.fetchval(query, self.tenant):
                        return
                finally:
                    connection.terminate()
            await asyncio.sleep(PAUSE)

    def _wanted(self, *, used_up: bool) -> set[str]:
        return {self._id(number) for number in range(len(self.sent)) if _is_used_up(number) is used_up}

    def _id(self, number: int) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self.tenant}-{number}"))

    def _message(self, number: int) -> bytes:
        return RetryMessage(
            message_id=self._id(number),
            original_payload=f"message {number}".encode(),
            original_queue=self.work_queue,
            error_reason="the service did not answer",
            retry_count=MAX_RETRIES if _is_used_up(number) else 0,
            max_retries=MAX_RETRIES,
        ).SerializeToString()

    @contextlib.asynccontextmanager
    async def _channel(self) -> AsyncIterator[AbstractChannel]:
        connection = await aiormq.connect(self.url)
        try:
            yield await connection.channel()
        finally:
            with contextlib.suppress(*BROKER_ERRORS):
                await connection.close()


def _is_used_up(number: int) -> bool:
    return number % EXHAUSTED_EVERY == EXHAUSTED_EVERY - 1


def shown(problems: Iterable[str], limit: int = 20) -> list[str]:
    """Return the first problems as lines."""
    return [f"  VIOLATION: {problem}" for problem in list(problems)[:limit]]
