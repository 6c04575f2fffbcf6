"""The bridge from a Redis stream: an entry becomes a run, or a record of its failure, and only then is acknowledged.

One task holds an entry from its delivery to its acknowledgement, and tells the server so. If the process dies, the
entry becomes idle and another consumer claims it. The server counts deliveries: they are the retry budget of an entry
that fails, or that crashes its consumers.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from redis.exceptions import RedisError, ResponseError

from redrive.bridges.events.intake import Intake, Message, Problem, Reaction, judge
from redrive.bridges.labels import Labels, labels_of, tenant_name
from redrive.bridges.outages import Outages, Stopping, said
from redrive.bridges.redis.stream import Entry, EventStream, is_group_gone
from redrive.errors import InvalidInput, StepError, Terminal
from redrive.events import Envelope
from redrive.logs import get_logger
from redrive.policy import EVENT, RetryPolicy
from redrive.postgres.database import Database
from redrive.store.events.dead import mirroring, not_mirrored

log = get_logger(__name__)

READ_WAIT: Final = timedelta(milliseconds=500)
SWEEP_INTERVAL: Final = timedelta(seconds=30)


@dataclass(frozen=True)
class Limits:
    """How much a bridge takes on, and how long it waits."""

    held: int = 50
    claim_idle: timedelta = timedelta(minutes=1)
    shutdown_grace: timedelta = timedelta(seconds=10)
    policy: RetryPolicy = EVENT


class RedisBridge:
    """Consume a stream as one member of its consumer group."""

    def __init__(
        self, stream: EventStream, intake: Intake, database: Database, limits: Limits, ready: Callable[[], None]
    ) -> None:
        self._stream = stream
        self._intake = intake
        self._database = database
        self._limits = limits
        self._ready = ready
        self._held: dict[str, asyncio.Task[None]] = {}
        self._let_go = asyncio.Event()
        self._stop = asyncio.Event()
        self._outages = Outages(stream.name, self._stop, _is_outage)
        self._claim_at = 0.0

    def stop(self) -> None:
        """Take no more entries, and end when those that are held are safe or have to wait."""
        self._stop.set()
        self._let_go.set()

    async def run(self) -> None:
        """Consume until `stop`."""
        helpers = [asyncio.create_task(self._keep_held()), asyncio.create_task(self._sweep())]
        try:
            await self._outages.until_done("redis", self._join)
            log.info("bridge.started", source=self._stream.name)
            while not self._stop.is_set():
                await self._outages.until_done("redis", self._take_some)
        except Stopping:
            pass
        finally:
            await self._finish(helpers)
        log.info("bridge.stopped", source=self._stream.name)

    async def _join(self) -> None:
        if await self._stream.make_group():
            log.info("bridge.group_made", source=self._stream.name)
        self._ready()

    async def _take_some(self) -> None:
        """Take as many entries as there is room for; wait for room if there is none."""
        room = self._limits.held - len(self._held)
        if room <= 0:
            self._let_go.clear()
            await self._let_go.wait()
            return
        try:
            entries = await self._next(room)
        except ResponseError as error:
            if not is_group_gone(error):
                raise
            # The server has lost its data. What was acknowledged is stored elsewhere; what is held continues.
            log.warning("bridge.group_gone", source=self._stream.name)
            await self._join()
            return
        for entry in entries:
            self._hold(entry)

    async def _next(self, room: int) -> list[Entry]:
        now = asyncio.get_running_loop().time()
        if now >= self._claim_at:
            self._claim_at = now + self._limits.claim_idle.total_seconds() / 2
            claimed = await self._stream.claim(room, self._limits.claim_idle)
            if claimed:
                log.info("bridge.claimed", source=self._stream.name, count=len(claimed))
                # Our own may be among them, if the server could not be told that we hold them.
                return [entry for entry in claimed if entry.id not in self._held]
        return await self._stream.read(room, READ_WAIT)

    def _hold(self, entry: Entry) -> None:
        task = asyncio.create_task(self._handle(entry))
        self._held[entry.id] = task

        def let_go(done: asyncio.Task[None]) -> None:
            del self._held[entry.id]
            self._let_go.set()
            error = None if done.cancelled() else done.exception()
            if error and not isinstance(error, Stopping):
                # It still belongs to the group: once idle it comes back, and counts as one more delivery.
                log.error(
                    "bridge.entry_left", source=self._stream.name, error_type=type(error).__name__, error=str(error)
                )

        task.add_done_callback(let_go)

    async def _handle(self, entry: Entry) -> None:
        """Make one entry safe, then acknowledge it."""
        message = Message(
            self._stream.name,
            entry.id,
            entry.body,
            entry.carrier,
            tenant=entry.tenant,
            full_size=entry.size if entry.is_cut else None,
        )
        problem = await self._take(message, entry.deliveries)
        if problem:
            tenant, dead_id = await self._outages.until_done("database", lambda: self._intake.bury(message, problem))
            await self._outages.until_done("redis", lambda: self._mirror(tenant, dead_id))
        await self._outages.until_done("redis", lambda: self._stream.acknowledge(entry.id))

    async def _take(self, message: Message, deliveries: int) -> Problem | None:
        """Accept a message, or return why not. One that was delivered too often is not read."""
        if deliveries > self._limits.policy.max_attempts:
            return Problem(_worn_out(deliveries - 1), deliveries - 1, Labels(tenant_name(message.tenant)))
        try:
            envelope = await self._intake.read(message)
        except InvalidInput as error:
            return Problem(error, deliveries, labels_of(message.body, message.tenant))
        failed = await self._accept(message, envelope, deliveries)
        return Problem(*failed, self._intake.labels(envelope)) if failed else None

    async def _accept(self, message: Message, envelope: Envelope, tries: int) -> tuple[Exception, int] | None:
        """Try to make a message safe as often as its policy allows; return why it is not, and the attempts."""
        while True:
            try:
                await self._outages.until_done("servers", lambda: self._intake.accept(message, envelope))
            except Stopping:
                raise
            except Exception as error:
                if judge(error) is Reaction.REFUSE or tries >= self._limits.policy.max_attempts:
                    return error, tries
                await self._back_off(error, tries)
                again = await self._outages.until_done("redis", lambda: self._stream.deliver_again(message.id))
                tries = again or tries + 1
            else:
                return None

    async def _back_off(self, error: Exception, tries: int) -> None:
        failure = self._intake.failure(error, tries)
        delay = self._limits.policy.wait_after(tries, failure.category, None, random.random())  # noqa: S311  # jitter
        log.warning(
            "event.retrying",
            source=self._stream.name,
            attempt=tries,
            max_attempts=self._limits.policy.max_attempts,
            delay_ms=round(delay.total_seconds() * 1000),
            **failure.model_dump(mode="json", include={"category", "error_type", "error"}),
        )
        await self._outages.pause(delay)

    async def _mirror(self, tenant: str, dead_id: str) -> None:
        """Add a recorded message to the stream of dead ones, unless it is there."""
        async with mirroring(await self._database.pool(), tenant, dead_id) as found:
            if found is None:
                return
            dead, body = found
            headers = {
                "reason": dead.error,
                "class": dead.category.value,
                "origin": dead.source_stream,
                "originId": dead.source_message_id,
                "attempts": str(dead.attempts),
                "time": dead.last_attempt_at.isoformat(),
                "tenant": dead.tenant,
                "dlqId": dead.id,
            }
            await self._stream.put_dead(dead.id, body, headers)

    async def _sweep(self) -> None:
        """Add to the stream of dead ones what a bridge recorded just before it died."""
        while True:
            try:
                for tenant, dead_id in await not_mirrored(await self._database.pool(), self._stream.name):
                    await self._mirror(tenant, dead_id)
            except Exception as error:
                if not _is_outage(error):
                    log.error("bridge.sweep_failed", error_type=type(error).__name__, error=str(error))
            await asyncio.sleep(SWEEP_INTERVAL.total_seconds())

    async def _keep_held(self) -> None:
        """Keep held entries from becoming idle, so that no other consumer claims them."""
        while True:
            await asyncio.sleep(self._limits.claim_idle.total_seconds() / 3)
            try:
                await self._stream.keep(list(self._held))
            except (RedisError, OSError) as error:
                log.debug("bridge.not_kept", source=self._stream.name, error=said(error))

    async def _finish(self, helpers: list[asyncio.Task[None]]) -> None:
        self.stop()
        if self._held:
            _, late = await asyncio.wait(self._held.values(), timeout=self._limits.shutdown_grace.total_seconds())
            helpers.extend(late)
        for task in helpers:
            task.cancel()
        await asyncio.wait(helpers)
        try:
            await self._stream.leave()
        except (RedisError, OSError) as error:
            log.debug("bridge.not_left", source=self._stream.name, error=said(error))


def _is_outage(error: Exception) -> bool:
    return isinstance(error, RedisError | OSError) or judge(error) is Reaction.WAIT


def _worn_out(deliveries: int) -> StepError:
    return Terminal(f"delivered {deliveries} times and never made safe: its consumers died or gave it up")
