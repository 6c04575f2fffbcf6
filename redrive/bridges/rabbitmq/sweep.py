"""The retry scheduler's sweep: due messages go to the queue that they came from, or to manual review.

A batch is one transaction: its rows are locked, sent with one wait for all confirmations, and removed. A process that
dies before the commit leaves the rows unchanged, and they are sent again with the same message id. So does a crash of
PostgreSQL just after the commit, which does not wait for the disk: that would delay what is due.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple, cast

from aiormq import Channel
from aiormq.abc import AbstractConnection
from aiormq.exceptions import DeliveryError, PublishError
from pamqp import commands

from redrive.bridges.rabbitmq.connection import BROKER_ERRORS, connected, ensure_queue, reason
from redrive.bridges.rabbitmq.messages import TENANT, dead_exhausted, for_review
from redrive.bridges.rabbitmq.metrics import RetryMetrics
from redrive.bridges.rabbitmq.settings import RetrySettings
from redrive.errors import Unavailable
from redrive.logs import get_logger
from redrive.postgres.database import DATABASE_ERRORS, Database
from redrive.postgres.tenancy import Connection, transaction
from redrive.store.messages.dead import mark_replayed, put_dead
from redrive.store.messages.retry_queue import DueRetry, PutBack, Sent, put_back, remove, take_due
from redrive.tracing import span, trace_headers

log = get_logger(__name__)

BATCH: Final = 500
# Batches in flight: a broker may take a tenth of a second to confirm, and what is due must not wait for it.
LANES: Final = 6
# How long a step of a batch may take: a sweep that hangs must end, so that another one continues.
TIMEOUT: Final = 30.0
RETRY_COUNT: Final = "x-retry-count"
MAX_RETRIES: Final = "x-max-retries"
_PERSISTENT: Final = 2


class _Result(NamedTuple):
    """The outcome of one message: confirmed, refused (with the reason), or unknown."""

    retry: DueRetry
    confirmed: bool
    refusal: str | None = None


class RetrySweeper:
    """Send what is due, in batches, until told to stop."""

    def __init__(self, url: str, settings: RetrySettings, database: Database, metrics: RetryMetrics) -> None:
        self._url = url
        self._settings = settings
        self._policy = settings.policy
        self._database = database
        self._metrics = metrics

    async def sweep(self, tenant: str, stop: asyncio.Event) -> int:
        """Send until told to stop and return how many; raise Unavailable if the broker or the database goes down."""
        try:
            async with connected(self._url, f"{self._settings.service_name} sweep") as connection:
                await ensure_queue(connection, self._settings.manual_review_queue)
                turn = _Turn(self._settings.poll_interval.total_seconds(), stop)
                lanes = [asyncio.create_task(self._lane(connection, tenant, turn)) for _ in range(LANES)]
                return sum(await _all_or_none(lanes))
        except BROKER_ERRORS as error:
            raise Unavailable(f"RabbitMQ is unavailable: {reason(error)}") from error

    async def _lane(self, connection: AbstractConnection, tenant: str, turn: "_Turn") -> int:
        # The interface does not declare `wait`: without it, each message would wait for the socket alone.
        channel = cast("Channel", await connection.channel(publisher_confirms=True, on_return_raises=True))
        sent = 0
        while not turn.over:
            try:
                sent += await self._batch(channel, tenant, turn)
            except DATABASE_ERRORS as error:
                raise Unavailable(f"a batch was not done: {type(error).__name__} {error}") from error
        return sent

    async def _batch(self, channel: Channel, tenant: str, turn: "_Turn") -> int:
        async with contextlib.AsyncExitStack() as undo:
            # One lane polls at a time; it keeps its transaction when the next begins to poll.
            async with turn.looking():
                if turn.over:
                    return 0
                async with asyncio.timeout(TIMEOUT):
                    pool = await self._database.pool()
                    connection = await undo.enter_async_context(transaction(pool, tenant, repeatable=True))
                    due = await take_due(connection, tenant, BATCH)
                turn.took(len(due))
            if not due:
                return 0
            # A trace of its own, not the sweep's, which lasts as long as the bridge.
            with span("retry.send", "producer", carrier={}, count=len(due), tenant_id=tenant):
                results = await self._send(channel, due, tenant)
                await self._settle(connection, tenant, [result for result in results if _is_known(result)])
        if not all(_is_known(result) for result in results):
            raise Unavailable("RabbitMQ stopped before it confirmed all of a batch")
        return len(due)

    async def _send(self, channel: Channel, due: Sequence[DueRetry], tenant: str) -> list[_Result]:
        """Send a batch and wait once for all of its confirmations."""
        tasks = [asyncio.create_task(self._publish(channel, retry, tenant)) for retry in due]
        try:
            _, late = await asyncio.wait(tasks, timeout=TIMEOUT)
        finally:
            # Unconfirmed messages: their outcome is unknown.
            for task in tasks:
                task.cancel()
        if late:
            await asyncio.wait(late)
        return [_result(retry, self._target(retry), task) for retry, task in zip(due, tasks, strict=True)]

    def _target(self, retry: DueRetry) -> str:
        return self._settings.manual_review_queue if retry.exhausted else retry.original_queue

    async def _publish(self, channel: Channel, retry: DueRetry, tenant: str) -> None:
        # One that could not be read comes back to us, and must match its record again.
        owner = {TENANT: tenant} if self._target(retry) == self._settings.retry_queue else {}
        made = retry.retry_count if retry.exhausted else retry.retry_count + 1
        await channel.basic_publish(
            for_review(retry) if retry.exhausted else retry.original_payload,
            routing_key=self._target(retry),
            # A queue that does not exist is a failure, not a loss.
            mandatory=True,
            properties=commands.Basic.Properties(
                delivery_mode=_PERSISTENT,
                message_id=str(retry.message_id),
                headers={RETRY_COUNT: made, MAX_RETRIES: retry.max_retries, **owner, **trace_headers()},
            ),
            wait=False,
        )

    async def _settle(self, connection: Connection, tenant: str, results: Sequence[_Result]) -> None:
        """Update the rows with the outcomes of their messages."""
        exhausted = [result.retry for result in results if result.retry.exhausted]
        if exhausted:
            await put_dead(connection, tenant, self._settings.retry_queue, [dead_exhausted(each) for each in exhausted])
        refused = [result for result in results if not result.confirmed]
        if refused:
            await put_back(connection, [self._put_back(result) for result in refused])
        confirmed = [result.retry for result in results if result.confirmed]
        sent = await remove(connection, [retry.id for retry in confirmed])
        replayed = [each.message_id for each in sent if each.was_replay]
        if replayed:
            # A message that was exhausted again is open again, and stays open.
            await mark_replayed(connection, tenant, replayed)
        self._count(results, sent)

    def _put_back(self, result: _Result) -> PutBack:
        draw = random.random()  # noqa: S311  # a jitter, not a secret
        delay = self._policy.delay(result.retry.retry_count + 2, draw)
        return PutBack(id=result.retry.id, reason=result.refusal or "", delay=delay)

    def _count(self, results: Sequence[_Result], sent: Sequence[Sent]) -> None:
        given_up = {result.retry.message_id for result in results if result.retry.exhausted and result.confirmed}
        retried = [each for each in sent if each.message_id not in given_up]
        self._metrics.sent(Counter(each.queue for each in retried), (each.drift for each in retried))
        for result in results:
            retry = result.retry
            if not result.confirmed:
                self._metrics.failed(retry.original_queue)
                log.warning("retry.refused", event_id=str(retry.message_id), error=result.refusal)
            elif retry.exhausted:
                self._metrics.exhausted(retry.original_queue)
                log.warning("retry.exhausted", event_id=str(retry.message_id), attempt=retry.retry_count)


def _is_known(result: _Result) -> bool:
    return result.confirmed or result.refusal is not None


def _result(retry: DueRetry, queue: str, task: asyncio.Task[None]) -> _Result:
    error = None if task.cancelled() else task.exception()
    if isinstance(error, PublishError):
        return _Result(retry, confirmed=False, refusal=f"queue {queue!r} does not exist")
    if isinstance(error, DeliveryError):
        return _Result(retry, confirmed=False, refusal=f"queue {queue!r} refused it")
    if error is not None and not isinstance(error, BROKER_ERRORS):
        raise error
    return _Result(retry, confirmed=error is None and not task.cancelled())


async def _all_or_none(lanes: list[asyncio.Task[int]]) -> list[int]:
    """Wait for all lanes; the first that fails ends the others."""
    try:
        return await asyncio.gather(*lanes)
    finally:
        for lane in lanes:
            lane.cancel()
        await asyncio.gather(*lanes, return_exceptions=True)


class _Turn:
    """Which lane may poll: at once after a full batch, otherwise after the interval."""

    def __init__(self, interval: float, stop: asyncio.Event) -> None:
        self._interval = interval
        self._stop = stop
        self._lock = asyncio.Lock()
        self._full = True

    @property
    def over(self) -> bool:
        """Tell whether the sweep must stop."""
        return self._stop.is_set()

    @contextlib.asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        """Wait for the turn, and keep it for the length of the block."""
        async with self._lock:
            if not self._full:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), self._interval)
            yield

    def took(self, count: int) -> None:
        """Record how many were due."""
        self._full = count == BATCH
