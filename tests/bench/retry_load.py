"""Load for the retry scheduler: messages that say when they are due, and how late they came."""

import asyncio
import contextlib
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import cast

import aiormq
import asyncpg
from aiormq.abc import AbstractChannel, DeliveredMessage
from pamqp import commands
from pydantic import BaseModel

from redrive.bridges.rabbitmq.retry_message_pb2 import RetryMessage

TENANT = "bench"
RETRY_QUEUE = "bench.retry"
REVIEW_QUEUE = "bench.review"
WORK_QUEUE = "bench.work"
# How far ahead messages are due that the sender sends: beyond the longest jitter.
AHEAD = 3.0
TICK = 0.05
PERSISTENT = 2


class Flow(BaseModel):
    """What came through: how many in a second, and how late."""

    messages: int
    per_s: float
    p50_ms: float
    p99_ms: float
    worst_ms: float


@dataclass
class Arrivals:
    """When messages came, and how late they were."""

    times: list[float] = field(default_factory=list)
    drifts: list[float] = field(default_factory=list)

    def add(self, due: float) -> None:
        """Note one that came now."""
        now = time.time()
        self.times.append(now)
        self.drifts.append(now - due)

    async def reach(self, count: int, limit: float) -> None:
        """Wait for so many."""
        async with asyncio.timeout(limit):
            while len(self.times) < count:  # noqa: ASYNC110  # it happens in other processes
                await asyncio.sleep(TICK)

    def flow(self) -> Flow:
        """Put them together."""
        span = max(self.times) - min(self.times)
        return flow_of(self.drifts, span)


def flow_of(drifts: Sequence[float], span: float) -> Flow:
    """Put figures together."""
    cuts = statistics.quantiles(drifts, n=100)
    return Flow(
        messages=len(drifts),
        per_s=len(drifts) / span,
        p50_ms=cuts[49] * 1000,
        p99_ms=cuts[98] * 1000,
        worst_ms=max(drifts) * 1000,
    )


@contextlib.asynccontextmanager
async def receiving(url: str) -> AsyncIterator[Arrivals]:
    """Take what comes back while the block lasts."""
    arrivals = Arrivals()

    async def take(message: DeliveredMessage) -> None:
        arrivals.add(float(message.body))

    async with open_channel(url) as channel:
        consumer = await channel.basic_consume(WORK_QUEUE, take, no_ack=True)
        yield arrivals
        await channel.basic_cancel(consumer.consumer_tag or "")


@contextlib.asynccontextmanager
async def open_channel(url: str) -> AsyncIterator[AbstractChannel]:
    """Open a channel, with the queues there."""
    connection = await aiormq.connect(url)
    try:
        channel = await connection.channel(publisher_confirms=False)
        for queue in (RETRY_QUEUE, REVIEW_QUEUE, WORK_QUEUE):
            await channel.queue_declare(queue, durable=True)
        yield channel
    finally:
        await connection.close()


async def send_steadily(url: str, *, rate: int, seconds: float) -> int:
    """Ask for so many retries a second, each due a little later, and return how many."""
    loop = asyncio.get_running_loop()
    sent = 0
    async with open_channel(url) as opened:
        # Its interface does not know `wait`: without it, each message would wait for the socket alone.
        channel = cast("aiormq.Channel", opened)
        began = loop.time()
        while (elapsed := loop.time() - began) < seconds:
            for _ in range(int(elapsed * rate) - sent):
                await _send(channel, time.time() + AHEAD)
                sent += 1
            await asyncio.sleep(TICK)
    return sent


async def _send(channel: aiormq.Channel, due: float) -> None:
    message = RetryMessage(
        message_id=str(uuid.uuid4()),
        original_payload=str(due).encode(),
        original_queue=WORK_QUEUE,
        error_reason="the service did not answer",
        next_retry_at_ms=int(due * 1000),
    )
    properties = commands.Basic.Properties(delivery_mode=PERSISTENT)
    await channel.basic_publish(message.SerializeToString(), routing_key=RETRY_QUEUE, properties=properties, wait=False)


_FILL = """
    INSERT INTO redrive.retry_queue (tenant, message_id, original_payload, original_queue, error_reason, next_retry_at)
    SELECT $1, gen_random_uuid(), convert_to(extract(epoch FROM due)::text, 'UTF8'), $2, 'no answer', due
    FROM (
        SELECT now() + $3::interval + $4::interval * number AS due FROM generate_series(1, $5::integer) AS number
    ) AS given
"""


class Table:
    """The table of retries, filled from within: a million messages through the broker would take ten minutes."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._connection = connection

    async def fill(self, count: int) -> None:
        """Let so many wait that are not due for days."""
        await self._put(count, timedelta(days=1), timedelta(milliseconds=1))
        await self._connection.execute("VACUUM ANALYZE redrive.retry_queue")

    async def make_due(self, count: int) -> None:
        """Let so many be due in a moment, all at once."""
        await self._put(count, timedelta(seconds=2), timedelta(0))

    async def empty(self) -> None:
        """Forget all."""
        await self._connection.execute("DELETE FROM redrive.retry_queue WHERE tenant = $1", TENANT)
        await self._connection.execute("VACUUM redrive.retry_queue")

    async def _put(self, count: int, ahead: timedelta, step: timedelta) -> None:
        await self._connection.execute(_FILL, TENANT, WORK_QUEUE, ahead, step, count, timeout=600)
