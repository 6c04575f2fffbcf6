"""An outbox with bridges on it in this process, and modules whose fate the test decides."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from pydantic import BaseModel
from temporalio.client import Client

import redrive.outbox
from redrive import STEP, ModuleContext, Pipeline, Redrive, Registry, Terminal
from redrive.bridges.outbox.bridge import OutboxBridge, OutboxLimits
from redrive.bridges.outbox.follower import Follower
from redrive.bridges.outbox.handling import RowHandler
from redrive.idempotency.postgres_claims import PostgresClaims
from redrive.outbox.rows import Outbox, OutboxEntry, OutboxFilter, OutboxStatus
from redrive.postgres.database import Database
from redrive.postgres.tenancy import Pool
from redrive.redaction.redactor import Redactor
from redrive.settings import Settings
from tests.conftest import eventually


class Order(BaseModel):
    item: str
    number: int = 0


class OutboxLab:
    """An outbox, its bridges, and what its modules have seen."""

    def __init__(self, outbox: Outbox, settings: Settings, temporal: Client, registry: Registry) -> None:
        self.outbox = outbox
        self.tenant = f"acme-{uuid.uuid4().hex[:8]}"
        self.settings = settings
        self.temporal = temporal
        self.registry = registry
        self.seen: list[int] = []
        self.is_broken = False
        assert settings.database_url
        self.url = settings.database_url.get_secret_value()

        @registry.module("ship", policy=STEP)
        async def ship(ctx: ModuleContext, given: Order) -> Order:
            if self.is_broken:
                raise Terminal("the shop is closed")
            self.seen.append(given.number)
            return given

        Pipeline("order", ship, registry=registry)

    @contextlib.asynccontextmanager
    async def bridge(
        self,
        limits: OutboxLimits | None = None,
        act: Callable[[Redrive], Any] = lambda made: made,
        redactor: Redactor | None = None,
    ) -> AsyncIterator[OutboxBridge]:
        """Run a bridge while the block lasts; leaving stops it as SIGTERM does."""
        claims = PostgresClaims(self.url)
        made = Redrive(self.temporal, task_queue=self.settings.task_queue, registry=self.registry, claims=claims)
        used, redactor, ready = act(made), redactor or Redactor(), asyncio.Event()
        own = Outbox(self.outbox.url, self.outbox.schema)
        async with own, Database(self.url) as database:
            bridge = OutboxBridge(
                own,
                RowHandler(used, database, redactor),
                Follower(own, used, database, redactor),
                limits or OutboxLimits(),
                ready.set,
            )
            task = asyncio.create_task(bridge.run())
            try:
                await ready.wait()
                yield bridge
            finally:
                bridge.stop()
                await task
        await made.close()

    async def enqueue(self, number: int = 0, **options: Any) -> str:
        """Ask for an order in a transaction of its own."""
        payload = options.pop("payload", {"item": "lamp", "number": number})
        given = {"tenant": self.tenant, "schema": self.outbox.schema} | options
        pool = await self.outbox.database.pool()
        async with pool.acquire() as connection, connection.transaction():
            return str(await redrive.outbox.enqueue(connection, "order", payload, **given))

    async def row(self, event_id: str) -> OutboxEntry:
        """Return a row."""
        return await self.outbox.get(self.tenant, event_id)

    async def becomes(self, event_id: str, status: OutboxStatus, cycle: int | None = None) -> OutboxEntry:
        """Wait until a row has a status."""
        return await eventually(partial(self._if_is, event_id, status, cycle))

    async def _if_is(self, event_id: str, status: OutboxStatus, cycle: int | None) -> OutboxEntry | None:
        row = await self.row(event_id)
        return row if row.status is status and cycle in {None, row.cycle} else None

    async def count(self, status: OutboxStatus) -> int:
        """Return how many rows have a status."""
        return len((await self.outbox.list_rows(OutboxFilter(status=status), limit=1000)).rows)

    async def sql(self, statement: str, *values: Any) -> Any:
        """Do what an operator does with psql."""
        return await (await self.outbox.database.pool()).fetchval(statement.format(self.outbox.schema), *values)

    @contextlib.asynccontextmanager
    async def audit_pool(self) -> AsyncIterator[Pool]:
        """Connect to Redrive's own database."""
        async with Database(self.url) as database:
            yield await database.pool()
