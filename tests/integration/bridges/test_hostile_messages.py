"""Messages of RabbitMQ that are made to kill whoever reads them: each is filed, and the retry behind them is stored."""

import struct
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pamqp import commands

from redrive.bridges.rabbitmq.retry_message_pb2 import RetryMessage
from redrive.postgres.database import Database
from redrive.postgres.tenancy import QUARANTINE, transaction
from redrive.starter.stack.state import StackInfo
from redrive.store.messages.dead import DeadMessage, MessageFilter, list_dead, read_payload
from redrive.store.messages.retry_queue import BATCH_BYTES, put_retries, take_due
from tests.conftest import eventually
from tests.integration.bridges.conftest import Names
from tests.integration.bridges.hostile import MIB, watched_bridge
from tests.integration.bridges.rabbit import RabbitServer, retry_message
from tests.integration.cli.command import CommandLine
from tests.integration.store.retries import new_retry
from tests.unit.bridges.test_amqp_values import nested

PATIENCE = 120.0
HEADERS, CONTENT_TYPE, TIMESTAMP = 1 << 13, 1 << 15, 1 << 6


class RawProperties(commands.Basic.Properties):
    """Properties whose bytes a test writes itself."""

    raw = b""

    def marshal(self) -> bytes:
        return self.raw


def properties(flags: int, data: bytes) -> RawProperties:
    made = RawProperties()
    made.raw = struct.pack(">H", flags) + data
    return made


def table(**texts: bytes) -> bytes:
    """A table of texts."""
    inner = b"".join(
        bytes([len(name)]) + name.replace("_", "-").encode() + b"S" + struct.pack(">I", len(text)) + text
        for name, text in texts.items()
    )
    return struct.pack(">I", len(inner)) + inner


def deaths(levels: int) -> bytes:
    """Headers with a long story of deaths: tables in tables, under the name that RabbitMQ uses."""
    story = b"\x07x-deathF" + nested(levels)
    return struct.pack(">I", len(story)) + story


def bodies() -> dict[str, bytes]:
    """Messages that must not be taken, by what is wrong with them."""
    return {
        "groups in groups": b"\x0b" * MIB,
        "unknown fields": b"\x98\x06\x01" * 300_000,
        "a length without end": b"\x0a\xff\xff\xff\xff\x0f",
        "a number without end": b"\x28" + b"\xff" * MIB,
        "not UTF-8": b"\x0a\x04\xff\xff\xff\xff",
        "long id": RetryMessage(message_id="x" * 4 * MIB, original_queue="q").SerializeToString(),
        "long queue": RetryMessage(message_id=str(uuid.uuid4()), original_queue="q" * 4 * MIB).SerializeToString(),
        "JSON": b'{"message_id": "' + b"[" * MIB,
        "empty": b"",
        "20 MiB": b"\x12" + b"z" * 20 * MIB,
    }


def headers() -> dict[str, RawProperties]:
    """Properties that end a connection which reads them without limits."""
    wide = b"".join(b"\x04" + struct.pack(">I", n) + b"V" for n in range(20_000))
    return {
        "deep": properties(HEADERS, deaths(18_000)),
        "wide": properties(HEADERS, struct.pack(">I", len(wide)) + wide),
        "content type": properties(CONTENT_TYPE, b"\x02\xff\xff"),
        "no such time": properties(TIMESTAMP, struct.pack(">Q", 2**64 - 1)),
    }


@pytest.fixture
async def database(stack: StackInfo) -> AsyncIterator[Database]:
    async with Database(stack.database_url.get_secret_value(), max_size=2) as database:
        yield database


@pytest.fixture
def command(stack: StackInfo, rabbitmq: RabbitServer, names: Names, tmp_path: Path) -> CommandLine:
    """The command, with queues of the test's own."""
    return CommandLine(
        tmp_path,
        TEMPORAL_ADDRESS=stack.temporal_address,
        DATABASE_URL=stack.database_url.get_secret_value(),
        RABBITMQ_URL=rabbitmq.url,
        SERVICE_NAME=names.settings.service_name,
        RETRY_QUEUE=names.settings.retry_queue,
        MANUAL_REVIEW_QUEUE=names.settings.manual_review_queue,
        HTTP_PORT="0",
        BASE_DELAY_MS="1",
        MAX_DELAY_MS="1",
        REDRIVE_LOG_FORMAT="json",
    )


async def publish(rabbitmq: RabbitServer, queue: str, body: bytes, made: commands.Basic.Properties) -> None:
    async with rabbitmq.channel() as channel:
        await channel.basic_publish(body, routing_key=queue, mandatory=True, properties=made)


async def filed(database: Database, queue: str) -> list[DeadMessage]:
    page = await list_dead(await database.pool(), MessageFilter(queue=queue), 1000)
    return page.rows


async def arrived(rabbitmq: RabbitServer, names: Names) -> bytes | None:
    messages = await rabbitmq.take(names.work)
    return messages[0].body if messages else None


async def test_hostile_messages_are_filed_and_the_bridge_lives(
    command: CommandLine, rabbitmq: RabbitServer, names: Names, database: Database
) -> None:
    """Whatever body and headers are: one process, little memory; the retries among and behind them are made."""
    queue, made = names.settings.retry_queue, bodies()
    async with watched_bridge(command, "rabbitmq", "--tenant", names.tenant):
        for body in made.values():
            await rabbitmq.publish(queue, [body, body])
        for number, each in enumerate(headers().values()):
            await publish(rabbitmq, queue, b"not a message %d" % number, each)
            await publish(rabbitmq, queue, retry_message(number, names.work, seed=names.tenant), each)
        mine = properties(HEADERS, table(x_tenant=names.tenant.encode()))
        await publish(rabbitmq, queue, b"mine", mine)
        await publish(rabbitmq, queue, b"whose", properties(HEADERS, table(x_tenant=b"(quarantine)")))
        await rabbitmq.publish(queue, [retry_message(99, names.work, seed=names.tenant)])
        came: set[bytes] = set()

        async def all_came() -> bool:
            came.update({message.body for message in await rabbitmq.take(names.work)})
            return len(came) == len(headers()) + 1

        await eventually(all_came, within=PATIENCE)
        assert sum(await rabbitmq.counts(queue)) == 0
    assert came == {b"0", b"1", b"2", b"3", b"99"}
    rows = await filed(database, queue)
    assert len(rows) == len(made) + len(headers()) + 2
    pool = await database.pool()
    texts = {await read_payload(pool, row): row for row in rows}
    assert texts[b"mine"].tenant == names.tenant
    assert {row.tenant for body, row in texts.items() if body != b"mine"} == {QUARANTINE}
    (large,) = [row for row in rows if row.full_size]
    assert (large.full_size, large.payload_size) == (len(made["20 MiB"]), names.settings.kept_message_bytes)
    assert "MAX_MESSAGE_BYTES" in large.error_reason


@pytest.mark.long
async def test_bridge_holds_no_more_bytes_than_it_may(
    command: CommandLine, rabbitmq: RabbitServer, names: Names, database: Database
) -> None:
    """Hundreds of megabytes of large messages wait with the broker, come in, and go out again, a part at a time."""
    queue = names.settings.retry_queue
    payload, count = b"p" * 8 * MIB, 40
    for _ in range(count):
        message = RetryMessage(message_id=str(uuid.uuid4()), original_payload=payload, original_queue=names.work)
        await rabbitmq.publish(queue, [message.SerializeToString()])
    came = 0
    async with watched_bridge(command, "rabbitmq", "--tenant", names.tenant):

        async def all_came() -> bool:
            nonlocal came
            came += len(await rabbitmq.take(names.work))
            return came >= count

        await eventually(all_came, within=200)
    assert await filed(database, queue) == []


async def test_message_that_came_back_too_often_is_filed_unread(
    command: CommandLine, rabbitmq: RabbitServer, names: Names, database: Database
) -> None:
    """A quorum queue counts deliveries: a good message that killed its consumers is not looked at by the next one."""
    queue = names.settings.retry_queue
    count = b"\x10x-delivery-countl" + struct.pack(">q", 10)
    counted = properties(HEADERS, struct.pack(">I", len(count)) + count)
    body = retry_message(1, names.work, seed=names.tenant)
    async with watched_bridge(command, "rabbitmq", "--tenant", names.tenant):
        await publish(rabbitmq, queue, body, counted)

        async def there() -> list[DeadMessage]:
            return await filed(database, queue)

        (dead,) = await eventually(there, within=PATIENCE)
    assert dead.error_reason.startswith("delivered 10 times and never stored")
    assert (dead.tenant, await read_payload(await database.pool(), dead)) == (QUARANTINE, body)


async def test_batch_is_bounded_by_its_bytes(database: Database, names: Names) -> None:
    """What is due is taken up to a number of bytes, and at least one message, however large it is."""
    pool, tenant = await database.pool(), names.tenant
    sizes = (3 * BATCH_BYTES // 2, BATCH_BYTES // 2, BATCH_BYTES // 2, 10)
    async with transaction(pool, tenant) as connection:
        for size in sizes:
            await put_retries(connection, tenant, [new_retry(original_payload=b"x" * size)])
    taken = []
    for _ in range(2):
        async with transaction(pool, tenant) as connection:
            due = await take_due(connection, tenant, 10)
            taken.append(sum(len(each.original_payload) for each in due))
            await connection.execute("DELETE FROM retry_queue WHERE id = ANY($1)", [each.id for each in due])
    assert max(taken) <= 3 * BATCH_BYTES // 2
    assert all(taken)
