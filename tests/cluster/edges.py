"""The console and both bridges beside the workers, and what comes in by them: commands, events, messages to retry.

Each event is sent twice, as producers do that were not sure. What reaches the service, the work queue and the tables is
compared with one run for each event and one message for each that was sent.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import httpx

from redrive.access import Role
from redrive.contracts import Broker
from redrive.dead_letters import LetterId
from redrive.errors import CommandRefused, Unavailable
from redrive.starter.stack.children import Program
from redrive.starter.stack.ports import reserve
from redrive.starter.stack.programs import CONSOLE_PORT, bridge_program, console_address, console_program
from redrive.store.access import TokenRequest, create_owner_token
from tests.acceptance.live import insist
from tests.bench.contenders import with_bytecode
from tests.chaos.retry_case import RetryCase
from tests.chaos.retry_scene import bridge_environment
from tests.cluster.case import PATIENCE, Service
from tests.cluster.cluster import Cluster
from tests.cluster.modules import EVENT_STEP, EVENT_TYPE
from tests.cluster.part import Part
from tests.integration.bridges.rabbit import rabbitmq_server
from tests.integration.events.valkey import Valkey, running_valkey

EVENT_TENANT, RETRY_TENANT = "cluster-events", "cluster-retries"
_STREAM = "cluster.events"
_GROUP = "bridges"


@dataclass
class Edges:
    """Clients of the console, of Redis and of RabbitMQ, and what they have sent."""

    console: httpx.AsyncClient
    valkey: Valkey
    retries: RetryCase
    service: Service
    cluster: Cluster
    events: set[int] = field(default_factory=set)

    async def send(self, count: int) -> None:
        """Send so many more events and messages."""
        numbers = range(len(self.events), len(self.events) + count)
        self.events.update(numbers)
        for number in [*numbers, *numbers]:
            await self.valkey.client.xadd(_STREAM, {"event": json.dumps(_event(number))})
        await self.retries.send(count)

    async def replay(self, letter: LetterId, request_id: str) -> None:
        """Replay a dead letter through the console's API, however often it must be asked."""

        async def ask() -> None:
            body = {"reason": "mended", "request_id": request_id}
            try:
                answer = await self.console.post(f"/api/v1/workflow-dlq/{letter.workflow_id}/replay", json=body)
            except httpx.TransportError as error:
                raise Unavailable(f"the console: {error!r}") from error
            if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                raise Unavailable(answer.text)
            if answer.status_code != httpx.codes.ACCEPTED:
                raise CommandRefused(f"the console answered {answer.status_code}: {answer.text}")

        await insist(ask, within=PATIENCE)

    async def until_done(self) -> None:
        """Wait until every event has had its effect, and every message is where it belongs."""
        async with asyncio.timeout(PATIENCE):
            while not all(self._effects(number) for number in self.events):  # noqa: ASYNC110  # of other processes
                await asyncio.sleep(0.5)
            await self.retries.until_all_came()
            await self.retries.until_nothing_waits()

    async def violations(self) -> list[str]:
        """Compare effects, stored events and messages with what was sent."""
        problems = [
            f"event {number}: effects {sorted(keys) or 'none'}"
            for number in self.events
            if len(keys := self._effects(number)) != 1
        ]
        stored = await self.cluster.database.sql(
            f"SELECT count(*) FROM redrive.events WHERE tenant = '{EVENT_TENANT}'",  # noqa: S608 - our own name
            "redrive",
        )
        if int(stored) != len(self.events):
            problems.append(f"{stored} events are stored, not {len(self.events)}")
        if held := (await self.valkey.client.xpending(_STREAM, _GROUP))["pending"]:
            problems.append(f"{held} entries of Redis were not acknowledged")
        return problems + await self.retries.violations()

    def _effects(self, number: int) -> set[str]:
        return set(self.service.keys[f"/{number}/{EVENT_STEP}"])

    @property
    def summary(self) -> str:
        """What came in, in words."""
        return (
            f"{len(self.events)} events by Redis, each sent twice; {len(self.retries.sent)} messages by RabbitMQ, "
            f"of which {self.retries.duplicates} came twice"
        )


def _event(number: int) -> dict[str, Any]:
    return {"dedupeKey": f"seen-{number}", "type": EVENT_TYPE, "source": "cluster", "payload": {"number": number}}


@contextlib.asynccontextmanager
async def running_edges(cluster: Cluster, service: Service, settings: Mapping[str, str]) -> AsyncIterator[Edges]:
    """Run a console, Redis, RabbitMQ and a bridge from each, while the block lasts."""
    environment = with_bytecode(cluster.environment | dict(settings), cluster.folder)
    async with (
        running_valkey(cluster.folder) as valkey,
        rabbitmq_server(cluster.folder) as rabbitmq,
        contextlib.AsyncExitStack() as undo,
    ):
        retries = RetryCase(
            rabbitmq.url,
            cluster.database.url("redrive"),
            tenant=RETRY_TENANT,
            retry_queue="cluster.retry",
            review_queue="cluster.review",
            work_queue="cluster.work",
        )
        await retries.make_queues()
        port = reserve("the cluster's console", asked=None, preferred=CONSOLE_PORT + 400).number
        console = console_program(environment | cluster.logins, port, rate_limit="100000/minute")
        for program in (console, *_bridges(cluster, environment, valkey.url, retries)):
            part = Part(program, cluster.folder / "logs")
            await part.start()
            undo.push_async_callback(part.stop)
        client = httpx.AsyncClient(
            base_url=console_address(port),
            timeout=60,
            headers={"Authorization": f"Bearer {await _token(cluster)}"},
        )
        await undo.enter_async_context(client)
        await undo.enter_async_context(retries.receiving())
        yield Edges(client, valkey, retries, service, cluster)


def _bridges(cluster: Cluster, environment: Mapping[str, str], redis_url: str, retries: RetryCase) -> list[Program]:
    from_redis = {
        "REDIS_URL": redis_url,
        "REDRIVE_EVENTS_STREAM": _STREAM,
        "REDRIVE_EVENTS_GROUP": _GROUP,
        "REDRIVE_EVENTS_TENANT": EVENT_TENANT,
    }
    from_rabbitmq = bridge_environment(
        environment, url=retries.url, retry_queue=retries.retry_queue, review_queue=retries.review_queue
    )
    rabbitmq = bridge_program(Broker.RABBITMQ, from_rabbitmq, cluster.folder)
    return [
        bridge_program(Broker.REDIS, {**environment, **from_redis}, cluster.folder),
        replace(rabbitmq, command=[*rabbitmq.command, "--tenant", RETRY_TENANT]),
    ]


async def _token(cluster: Cluster) -> str:
    """Create an owner's token: one of the tenant would be in its audit log, whose entries are counted."""
    wanted = TokenRequest(
        name="cluster",
        role=Role.OWNER,
        tenant=None,
        created_by="the tests",
        person="member:cluster",
        lasts=timedelta(days=1),
    )
    return (await create_owner_token(cluster.database.url("redrive"), wanted)).secret
