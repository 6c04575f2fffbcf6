"""The Redis bridge shows what every bridge has to show."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest
from pydantic import BaseModel
from redis.exceptions import ConnectionError as BrokerAway
from temporalio.client import Client
from temporalio.service import RPCError

from redrive import Event, ModuleContext, Pipeline, Registry
from redrive.settings import Settings
from tests.integration.bridges.conformance import BridgeConformance, BridgeLab
from tests.integration.events.event_lab import EventLab
from tests.integration.events.valkey import Valkey


class Thing(BaseModel):
    n: int


class Given(BaseModel):
    event: Event[Thing]


async def note(ctx: ModuleContext, given: Given) -> Thing:
    return given.event.payload


class RedisLab(BridgeLab):
    """A message is an event; it is safe when it is stored and its run exists. No worker is needed for that."""

    most_held = 20

    def __init__(self, lab: EventLab, temporal: Client) -> None:
        self._lab = lab
        self._temporal = temporal
        self._numbers: dict[str, int] = {}

    async def send(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            await self._lab.emit(f"thing:{number}", n=number)

    async def send_poison(self) -> None:
        await self._lab.put("no JSON at all")

    @contextlib.asynccontextmanager
    async def bridge(self) -> AsyncIterator[None]:
        async with self._lab.bridge():
            yield

    async def safe(self) -> list[int]:
        new = [row for row in await self._lab.stored() if row.run_id not in self._numbers]
        found = await asyncio.gather(*(self._exists(row.run_id) for row in new))
        for row, exists in zip(new, found, strict=True):
            if exists:
                self._numbers[row.run_id] = int(row.dedupe_key.removeprefix("thing:"))
        return list(self._numbers.values())

    async def refused(self) -> int:
        dead, entries = await self._lab.dead(), await self._lab.dead_entries()
        assert [row.id for row in dead] == [entry["dlqId"] for entry in entries]
        return len(dead)

    async def held(self) -> int:
        with contextlib.suppress(BrokerAway):
            return await self._lab.held()
        return -1

    async def owed(self) -> int:
        return await self._lab.owed()

    @contextlib.asynccontextmanager
    async def nothing_can_be_safe(self) -> AsyncIterator[None]:
        self._lab.database.closed = True
        yield
        self._lab.database.closed = False

    async def restart_broker(self) -> None:
        await self._lab.valkey.kill()

    async def _exists(self, run_id: str) -> bool:
        try:
            await self._temporal.get_workflow_handle(run_id).describe()
        except RPCError:
            return False
        return True


class TestRedis(BridgeConformance):
    @pytest.fixture
    async def lab(
        self, valkey: Valkey, settings: Settings, temporal: Client, registry: Registry
    ) -> AsyncIterator[BridgeLab]:
        Pipeline("thing-happened", registry.module("note")(note), registry=registry)
        lab = EventLab(valkey, settings, temporal, registry)
        async with lab.database:
            yield RedisLab(lab, temporal)
