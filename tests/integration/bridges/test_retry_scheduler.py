"""The retry scheduler as a whole: in from RabbitMQ, through Postgres, out by a sweep that Temporal runs."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import psutil
import pytest
from aiormq.abc import DeliveredMessage
from temporalio.client import Client

from redrive.bridges.rabbitmq.retry_message_pb2 import RetryMessage
from redrive.bridges.rabbitmq.settings import RetrySettings
from redrive.contracts import Workflow
from redrive.dead_letters import Discard, Replay
from redrive.errors import InvalidInput
from redrive.postgres.database import Database
from redrive.postgres.tenancy import QUARANTINE
from redrive.processes.rabbitmq_bridge import RabbitBridge, open_bridge
from redrive.settings import Settings
from redrive.store.audit import list_audit
from redrive.store.broker_records import NEEDS_TENANT
from redrive.store.messages.dead import (
    DeadMessage,
    MessageFilter,
    MessageKind,
    MessageStatus,
    assigned,
    find_dead,
    list_dead,
    take_command,
)
from redrive.store.messages.retry_queue import depth
from tests.conftest import eventually
from tests.integration.bridges.conftest import Names
from tests.integration.bridges.rabbit import RabbitServer, retry_message

PATIENCE = 60.0


@dataclass
class AppState:
    """A running bridge, and what tests ask about it."""

    bridge: RabbitBridge
    http: httpx.AsyncClient
    rabbitmq: RabbitServer
    names: Names
    database: Database

    async def send(self, *numbers: int, queue: str | None = None, **fields: object) -> None:
        """Ask for retries."""
        seed = self.names.tenant
        bodies = [retry_message(number, queue or self.names.work, seed=seed, **fields) for number in numbers]
        await self.rabbitmq.publish(self.names.settings.retry_queue, bodies)

    async def arrived(self, count: int, queue: str | None = None) -> list[DeliveredMessage]:
        """Wait for so many messages in a queue, and take them."""
        messages: list[DeliveredMessage] = []

        async def all_there() -> bool:
            messages.extend(await self.rabbitmq.take(queue or self.names.work))
            return len(messages) >= count

        await eventually(all_there, within=PATIENCE)
        return messages

    async def dead(self, status: MessageStatus = MessageStatus.PENDING, *, unread: bool = False) -> DeadMessage:
        """Wait for a dead message of the tenant, or for one of the queue that could not be read."""

        async def there() -> DeadMessage | None:
            wanted = MessageFilter(tenant=self.names.tenant, status=status)
            if unread:
                wanted = MessageFilter(queue=self.names.settings.retry_queue, status=status)
            page = await list_dead(await self.database.pool(), wanted, 10)
            return page.rows[0] if page.rows else None

        return await eventually(there, within=PATIENCE)

    async def metric(self, name: str) -> float:
        """Read a metric, with its labels, or 0."""
        lines = (await self.http.get("/metrics")).text.splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), 0.0)

    async def waiting(self) -> int:
        """Count what waits."""
        return await depth(await self.database.pool(), self.names.tenant)


@contextlib.asynccontextmanager
async def app_state(
    settings: Settings, rabbitmq: RabbitServer, names: Names, **changes: object
) -> AsyncIterator[AppState]:
    """Run a bridge with delays of milliseconds."""
    quick: dict[str, object] = {"base_delay_ms": 1, "max_delay_ms": 2} | changes
    retry = RetrySettings.model_validate(names.settings.model_dump() | quick)
    assert settings.database_url
    stop = asyncio.Event()
    async with (
        Database(settings.database_url.get_secret_value()) as database,
        open_bridge(settings, retry, names.tenant) as (bridge, port),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        running = asyncio.create_task(bridge.run(until=stop))
        try:
            await asyncio.wait_for(bridge.health.been_well(), PATIENCE)
            yield AppState(bridge, http, rabbitmq, names, database)
        finally:
            stop.set()
            await running


@pytest.fixture
async def running(settings: Settings, rabbitmq: RabbitServer, names: Names) -> AsyncIterator[AppState]:
    """A bridge whose jitter of up to a second stays."""
    async with app_state(settings, rabbitmq, names) as found:
        yield found


async def test_message_comes_back_to_its_queue_with_its_id_and_the_count(running: AppState) -> None:
    """A retry has the original payload, the same message id, and a header that says how many retries were made."""
    await running.send(7, retry_count=1)
    (message,) = await running.arrived(1)
    assert message.body == b"7"
    properties = message.header.properties
    assert properties.message_id == str(uuid.uuid5(uuid.NAMESPACE_OID, f"{running.names.tenant}7"))
    assert properties.headers == {"x-retry-count": 2, "x-max-retries": 3}
    assert properties.delivery_mode == 2

    async def gone() -> bool:
        return await running.waiting() == 0

    await eventually(gone, within=PATIENCE)


async def test_message_waits_as_the_curve_says(settings: Settings, rabbitmq: RabbitServer, names: Names) -> None:
    """The delay is the preset's for the retries made so far; a later time that the sender names wins."""
    async with app_state(settings, rabbitmq, names, base_delay_ms=600_000, max_delay_ms=3_600_000) as found:
        await found.send(1)
        await found.send(2, retry_count=2)

        async def stored() -> bool:
            return await found.waiting() == 2

        await eventually(stored, within=PATIENCE)
        pool = await found.database.pool()
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute("SELECT set_config('redrive.tenant', $1, true)", names.tenant)
            rows = await connection.fetch(
                "SELECT retry_count, extract(epoch FROM next_retry_at - created_at)::float8 AS delay FROM retry_queue"
            )
        delays = {row["retry_count"]: row["delay"] for row in rows}
        assert 600 <= delays[0] < 601
        assert 2400 <= delays[2] < 2401
        assert await found.rabbitmq.take(names.work) == []


async def test_used_up_message_goes_to_manual_review_and_can_be_replayed(running: AppState) -> None:
    """When no retry is left the whole message is in the review queue and a record is open; a replay sends it again."""
    await running.send(1, retry_count=3)
    (review,) = await running.arrived(1, running.names.settings.manual_review_queue)
    message = RetryMessage.FromString(review.body)
    assert (message.original_payload, message.original_queue, message.retry_count) == (b"1", running.names.work, 3)
    dead = await running.dead()
    assert (dead.kind, dead.error_reason) == (MessageKind.EXHAUSTED, "the service did not answer")
    assert await running.rabbitmq.take(running.names.work) == []

    command = Replay(request_id="again", requested_by="ada", reason="mended")
    pool = await running.database.pool()
    answers = [await take_command(pool, dead.tenant, dead.message_id, command) for _ in range(2)]
    assert answers[0] == answers[1]
    assert answers[0] is not None
    assert answers[0].accepted
    (again,) = await running.arrived(1)
    assert again.header.properties.message_id == str(dead.message_id)
    assert (await running.dead(MessageStatus.REPLAYED)).replay_count == 1
    refused = await take_command(
        pool, dead.tenant, dead.message_id, Discard(request_id="late", requested_by="ada", reason="too late")
    )
    assert refused is not None
    assert not refused.accepted
    labels = f'{{queue="{running.names.work}"}}'
    assert await running.metric(f"retries_exhausted_total{labels}") == 1


async def test_queue_that_does_not_exist_is_a_failure_and_not_a_loss(running: AppState) -> None:
    """Each try is counted and waits again; at the end the message is in manual review, with the reason."""
    await running.send(1, queue="nowhere.at.all", max_retries=2)
    dead = await running.dead()
    assert dead.error_reason == "queue 'nowhere.at.all' does not exist"
    assert (dead.retry_count, dead.max_retries) == (2, 2)
    assert await running.metric('retries_executed_total{queue="nowhere.at.all",status="failed"}') == 2
    assert len(await running.arrived(1, running.names.settings.manual_review_queue)) == 1


async def test_poison_is_kept_and_a_replay_puts_it_where_it_came_from(running: AppState) -> None:
    """A message that cannot be read is in quarantine, with the field; a tenant's, and unmended, it is open again."""
    await running.send(1, retry_count=-1)
    dead = await running.dead(unread=True)
    assert (dead.kind, dead.error_reason) == (MessageKind.MALFORMED, "retry_count -1 is not from 0 to 1000")
    assert dead.tenant == QUARANTINE
    command = Replay(request_id="again", requested_by="ada", reason="a try")
    pool = await running.database.pool()
    refused = await take_command(pool, dead.tenant, dead.message_id, command)
    assert refused is not None
    assert (refused.accepted, refused.message) == (False, NEEDS_TENANT)
    command = command.model_copy(update={"request_id": "assigned"})
    assert await assigned(pool, dead, running.names.tenant, command) == running.names.tenant
    answer = await take_command(pool, running.names.tenant, dead.message_id, command)
    assert answer is not None
    assert answer.accepted

    async def open_again() -> bool:
        (found,) = await find_dead(pool, None, dead.message_id)
        return (found.tenant, found.cycle, found.status) == (running.names.tenant, 2, MessageStatus.PENDING)

    await eventually(open_again, within=PATIENCE)
    for tenant in (QUARANTINE, running.names.tenant):
        actions = [line.action for line in await list_audit(pool, tenant, dead.id)]
        assert "assigned" in actions


async def test_health_and_metrics_are_served(running: AppState) -> None:
    """Every part is named in the answer, and the metrics have the specification's names."""
    answer = await running.http.get("/health")
    assert answer.status_code == 200
    assert answer.json()["parts"] == {"rabbitmq": "ok", "postgres": "ok", "temporal": "ok"}
    await running.send(1, 2)
    await running.arrived(2)
    labels = f'queue="{running.names.work}"'

    async def counted() -> bool:
        return await running.metric(f'retries_executed_total{{{labels},status="success"}}') == 2

    await eventually(counted, within=PATIENCE)
    assert await running.metric(f"retries_scheduled_total{{{labels}}}") == 2
    assert await running.metric("retry_drift_seconds_count") == 2
    assert "\nretry_queue_depth 0.0" in (await running.http.get("/metrics")).text


async def test_health_is_served_to_this_machine_alone(running: AppState) -> None:
    """By default neither health nor metrics, which ask nobody who they are, can be read from elsewhere."""
    port = running.http.base_url.port
    listening = [each for each in psutil.Process().net_connections(kind="inet") if each.laddr.port == port]
    assert {each.laddr.ip for each in listening if each.status == psutil.CONN_LISTEN} == {"127.0.0.1"}


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
async def test_address_that_is_not_ours_is_refused_by_name(settings: Settings, names: Names, host: str) -> None:
    """A sentence names both settings."""
    retry = names.settings.model_copy(update={"http_host": host})
    with pytest.raises(InvalidInput, match=f"HTTP_HOST={host} HTTP_PORT=0"):
        async with open_bridge(settings, retry, names.tenant):
            pass


async def test_sweep_that_somebody_ended_is_started_again(running: AppState, temporal: Client) -> None:
    """The sweep is one workflow of a fixed id; terminated in the Web UI, it is back with the next look after it."""
    handle = temporal.get_workflow_handle(running.bridge.sweep_id)
    assert (await handle.describe()).workflow_type == Workflow.RETRY_SWEEP
    await handle.terminate("a test")
    await running.bridge.ensure_sweep(temporal)
    await running.send(1)
    assert len(await running.arrived(1)) == 1
