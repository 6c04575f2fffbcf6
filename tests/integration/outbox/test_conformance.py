"""The outbox bridge shows what every bridge has to show."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import pytest

from redrive import Redrive, StartedRun
from redrive.bridges.outbox.bridge import OutboxLimits
from redrive.errors import Unavailable
from redrive.outbox.rows import OutboxFilter, OutboxStatus
from tests.integration.bridges.conformance import BridgeConformance, BridgeLab
from tests.integration.outbox.outbox_lab import OutboxLab

LIMITS = OutboxLimits(batch=10, lanes=2)


class _Gate:
    """A Redrive whose starts do not come through while the gate is closed, as if Temporal did not answer."""

    def __init__(self, redrive: Redrive, lab: "OutboxConformanceLab") -> None:
        self._redrive = redrive
        self._lab = lab

    async def start(self, *given: Any, **options: Any) -> StartedRun:
        if self._lab.is_closed:
            await asyncio.sleep(0.5)
            raise Unavailable("Temporal did not answer")
        return await self._redrive.start(*given, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._redrive, name)


class OutboxConformanceLab(BridgeLab):
    """A message is a row; it is safe when its run exists, and acknowledged when it is no longer pending."""

    most_held = LIMITS.held

    def __init__(self, lab: OutboxLab) -> None:
        self._lab = lab
        self.is_closed = False

    async def send(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            await self._lab.enqueue(number, key=f"thing:{number}")

    async def send_poison(self) -> None:
        await self._lab.enqueue(payload={"item": ["not", "a", "name"]})

    @contextlib.asynccontextmanager
    async def bridge(self) -> AsyncIterator[None]:
        async with self._lab.bridge(LIMITS, act=lambda made: _Gate(made, self)):
            yield

    async def safe(self) -> list[int]:
        rows = (await self._lab.outbox.list_rows(OutboxFilter(), limit=1000)).rows
        return [int(row.key.removeprefix("thing:")) for row in rows if row.run_id]

    async def refused(self) -> int:
        return await self._lab.count(OutboxStatus.FAILED)

    async def held(self) -> int:
        free = """
            WITH free AS (SELECT FROM {}.outbox WHERE status = 'pending' FOR UPDATE SKIP LOCKED)
            SELECT count(*) FROM free
        """
        with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return await self.owed() - int(await self._lab.sql(free))
        return -1

    async def owed(self) -> int:
        return await self._lab.count(OutboxStatus.PENDING)

    @contextlib.asynccontextmanager
    async def nothing_can_be_safe(self) -> AsyncIterator[None]:
        self.is_closed = True
        yield
        self.is_closed = False

    async def restart_broker(self) -> None:
        """End every connection to the team's database, as a restart does; the server has other users here."""
        ended = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> $1"
        )
        connection = await asyncpg.connect(self._lab.outbox.url)
        try:
            await connection.execute(ended, connection.get_server_pid())
        finally:
            await connection.close()
        await self._lab.outbox.close()


class TestOutbox(BridgeConformance):
    @pytest.fixture
    async def lab(self, outbox_lab: OutboxLab) -> BridgeLab:
        return OutboxConformanceLab(outbox_lab)
