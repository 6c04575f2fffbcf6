"""A stream of a test's own, bridges on it, and what became of its events."""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from temporalio.client import Client

from redrive import EVENT, Redrive, Registry
from redrive.bridges.events.intake import make_intake
from redrive.bridges.events.settings import EventSettings
from redrive.bridges.redis.bridge import Limits, RedisBridge
from redrive.bridges.redis.stream import EventStream
from redrive.errors import Unavailable
from redrive.postgres.database import Database
from redrive.postgres.tenancy import Pool
from redrive.settings import Settings
from redrive.store.events.dead import DeadEvent, DeadEventFilter, list_dead_events
from redrive.store.events.records import EventFilter, EventRow, Projection, list_events, projections_of
from tests.integration.events.valkey import Valkey

QUICK = EVENT.model_copy(update={"base": timedelta(milliseconds=20), "cap": timedelta(milliseconds=100)})


class Gate(Database):
    """A database that can be told not to answer."""

    closed = False

    async def pool(self) -> Pool:
        if self.closed:
            raise Unavailable("the database is away")
        return await super().pool()


class EventLab:
    """One tenant, one stream, one consumer group."""

    def __init__(self, valkey: Valkey, settings: Settings, temporal: Client, registry: Registry) -> None:
        assert settings.database_url
        self.valkey = valkey
        self.settings = settings
        self.redrive = Redrive(temporal, task_queue=settings.task_queue, registry=registry)
        name = uuid.uuid4().hex[:12]
        self.events = EventSettings(
            redis_url=valkey.url, stream=f"events-{name}", group="bridges", tenant=f"tenant-{name}"
        )
        self.database = Gate(settings.database_url.get_secret_value())
        self.intake = make_intake(self.redrive, self.database, settings, self.events)
        self.limits = Limits(held=20, claim_idle=timedelta(minutes=1), policy=QUICK)

    @property
    def stream(self) -> str:
        return self.events.stream

    @property
    def tenant(self) -> str:
        return self.events.tenant

    async def emit(self, key: str, *, type_: str = "thing.happened", **payload: Any) -> str:
        """Put an event on the stream."""
        return await self.put(json.dumps(envelope(key, type_, **payload)))

    async def put(self, body: str | bytes) -> str:
        """Put anything on the stream."""
        entry: str = await self.valkey.client.xadd(self.stream, {"event": body})
        return entry

    def make(self, limits: Limits | None = None) -> tuple[RedisBridge, EventStream]:
        """Put a bridge together: a consumer of its own."""
        stream = EventStream.connect(
            self.valkey.url, self.stream, group=self.events.group, consumer=f"consumer-{uuid.uuid4().hex[:8]}"
        )
        return RedisBridge(stream, self.intake, self.database, limits or self.limits, ready=lambda: None), stream

    @contextlib.asynccontextmanager
    async def bridge(self, limits: Limits | None = None) -> AsyncIterator[RedisBridge]:
        """Run a bridge while the block lasts."""
        bridge, stream = self.make(limits)
        running = asyncio.create_task(bridge.run())
        try:
            yield bridge
        finally:
            bridge.stop()
            await running
            await stream.close()

    async def stored(self) -> list[EventRow]:
        """Return the stored events."""
        page = await list_events(await self.database.pool(), EventFilter(tenant=self.tenant), 1000)
        return page.rows

    async def dead(self) -> list[DeadEvent]:
        """Return the records of the stream's messages that could not become a run, whosever they are."""
        page = await list_dead_events(await self.database.pool(), DeadEventFilter(source_stream=self.stream), 1000)
        return page.rows

    async def dead_entries(self) -> list[dict[str, str]]:
        """Return what is on the stream of dead ones."""
        return [fields for _, fields in await self.valkey.client.xrange(f"{self.stream}.dlq")]

    async def projections(self, event_id: str) -> dict[str, Projection]:
        """Return the records of an event's projectors by name."""
        rows = await projections_of(await self.database.pool(), self.tenant, event_id)
        return {row.projector: row for row in rows}

    async def held(self) -> int:
        """Return how many entries were delivered and not acknowledged."""
        group = await self._group()
        return int(group["pending"]) if group else 0

    async def owed(self) -> int:
        """Return how many entries are not acknowledged."""
        group = await self._group()
        after = f"({group['last-delivered-id']}" if group else "-"
        waiting = await self.valkey.client.xrange(self.stream, after)
        return len(waiting) + (int(group["pending"]) if group else 0)

    async def is_done(self) -> bool:
        """Tell whether all is acknowledged."""
        return await self.owed() == 0

    async def _group(self) -> dict[str, Any] | None:
        if not await self.valkey.client.exists(self.stream):
            return None
        groups: list[dict[str, Any]] = await self.valkey.client.xinfo_groups(self.stream)
        return groups[0] if groups else None


def envelope(key: str, type_: str = "thing.happened", **payload: Any) -> dict[str, Any]:
    """Return an event as a producer writes it."""
    return {"dedupeKey": key, "type": type_, "source": "tests", "payload": payload}
