"""The RabbitMQ bridge passes what every bridge has to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import asyncpg
import pytest

from redrive.bridges.health import Health
from redrive.bridges.rabbitmq.ingest import PREFETCH, RetryIngest
from redrive.bridges.rabbitmq.metrics import RetryMetrics
from redrive.postgres.database import Database
from redrive.redaction.redactor import Redactor
from redrive.starter.stack.state import StackInfo
from redrive.store.messages.dead import MessageFilter, list_dead
from tests.conftest import owner_url
from tests.integration.bridges.conformance import BridgeConformance, BridgeLab
from tests.integration.bridges.conftest import Names
from tests.integration.bridges.rabbit import RabbitServer, retry_message


class RabbitLab(BridgeLab):
    """Safe is a row in the table of retries."""

    most_held = PREFETCH

    def __init__(self, rabbitmq: RabbitServer, names: Names, database_url: str) -> None:
        self._rabbitmq = rabbitmq
        self._names = names
        self._url = database_url

    async def send(self, numbers: Sequence[int]) -> None:
        bodies = [retry_message(number, "nowhere", seed=self._names.tenant) for number in numbers]
        await self._rabbitmq.publish(self._names.settings.retry_queue, bodies)

    async def send_poison(self) -> None:
        await self._rabbitmq.publish(self._names.settings.retry_queue, [b"\xff\xff not a message"])

    @contextlib.asynccontextmanager
    async def bridge(self) -> AsyncIterator[None]:
        async with Database(self._url) as database:
            ingest = RetryIngest(
                self._rabbitmq.url,
                self._names.settings,
                database,
                tenant=self._names.tenant,
                metrics=RetryMetrics(),
                health=Health(),
                redactor=Redactor(),
            )
            task = asyncio.create_task(ingest.run())
            try:
                yield
            finally:
                ingest.stop()
                await task

    async def safe(self) -> list[int]:
        query = "SELECT original_payload FROM redrive.retry_queue WHERE tenant = $1"
        async with self._connection() as connection:
            return [int(row["original_payload"]) for row in await connection.fetch(query, self._names.tenant)]

    async def refused(self) -> int:
        async with Database(self._url) as database:
            page = await list_dead(
                await database.pool(), MessageFilter(queue=self._names.settings.retry_queue), limit=10
            )
        return len(page.rows)

    async def held(self) -> int:
        _, unacknowledged = await self._rabbitmq.counts(self._names.settings.retry_queue)
        return unacknowledged

    async def owed(self) -> int:
        return sum(await self._rabbitmq.counts(self._names.settings.retry_queue))

    @contextlib.asynccontextmanager
    async def nothing_can_be_safe(self) -> AsyncIterator[None]:
        async with self._connection() as connection, connection.transaction():
            await connection.execute("LOCK TABLE redrive.retry_queue IN ACCESS EXCLUSIVE MODE")
            yield

    async def restart_broker(self) -> None:
        await self._rabbitmq.restart()

    @contextlib.asynccontextmanager
    async def _connection(self) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
        connection = await asyncpg.connect(self._url)
        try:
            yield connection
        finally:
            await connection.close()


class TestRabbitMQ(BridgeConformance):
    """RabbitMQ."""

    @pytest.fixture
    def lab(self, rabbitmq: RabbitServer, names: Names, stack: StackInfo) -> BridgeLab:
        """A lab on the session's servers."""
        return RabbitLab(rabbitmq, names, owner_url(stack))
