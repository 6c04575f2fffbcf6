"""`redrive up --with redis,rabbitmq`, and what operators do with messages that were given up, as typed."""

import json
import shlex
import socket
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiormq
import psutil
import pytest
from pamqp import commands

from redrive.bridges.rabbitmq.retry_message_pb2 import RetryMessage
from redrive.starter.stack.rabbitmq import Programs
from tests.acceptance.live import ROOT, Up, working_directory
from tests.conftest import eventually
from tests.integration.bridges.rabbit import rabbitmq_server
from tests.integration.cli.command import CommandLine, Said

WORK = "billing.invoices"
PATIENCE = 60.0


@pytest.fixture(scope="module")
def up(rabbitmq_programs: Programs) -> Iterator[Up]:
    """The stack with both brokers and their bridges."""
    with working_directory() as directory, Up(directory, "--with", "redis,rabbitmq", "--workers", "0") as up:
        yield up


async def redrive(up: Up, *words: str) -> Said:
    return await CommandLine(up.directory)(*words)


def stack(up: Up) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((up.directory / ".redrive" / "stack.json").read_text())
    return document


def url(up: Up) -> str:
    return str(stack(up)["brokers"]["rabbitmq"])


async def send(up: Up, *messages: RetryMessage) -> None:
    connection = await aiormq.connect(url(up))
    channel = await connection.channel()
    await channel.queue_declare(WORK, durable=True)
    for message in messages:
        await channel.basic_publish(message.SerializeToString(), routing_key="retry.scheduled", mandatory=True)
    await connection.close()


async def take(up: Up) -> bytes | None:
    connection = await aiormq.connect(url(up))
    try:
        message = await (await connection.channel()).basic_get(WORK, no_ack=True)
        return None if isinstance(message.delivery, commands.Basic.GetEmpty) else message.body
    finally:
        await connection.close()


async def listed(up: Up, *words: str) -> list[dict[str, Any]]:
    said = await redrive(up, "messages", "list", "--json", *words)
    assert said.code == 0, said.err
    rows: list[dict[str, Any]] = said.document["messages"]
    return rows


async def test_operator_replays_and_discards_messages_from_the_command_line(up: Up) -> None:
    """Two messages are given up; one is replayed and comes back, one is discarded; the audit log has it all."""
    ids = [str(uuid.uuid4()) for _ in range(2)]
    await send(
        up,
        *(
            RetryMessage(message_id=one, original_payload=b"invoice 7", original_queue=WORK, retry_count=3)
            for one in ids
        ),
    )

    async def both() -> bool:
        return len(await listed(up, "--status", "pending", "--queue", WORK)) == 2

    await eventually(both, within=PATIENCE)
    assert ids[0] in (await redrive(up, "messages", "show", ids[0])).out
    assert (await redrive(up, "messages", "show", ids[0], "--payload")).out == "invoice 7"
    said = await redrive(up, "messages", "replay", f"message-{ids[0]}", "--reason", "billing is back", "--yes")
    assert (said.code, said.err) == (0, "")
    assert await eventually(lambda: take(up), within=PATIENCE) == b"invoice 7"
    said = await redrive(up, "messages", "discard", ids[1], "--reason", "sent by hand", "--yes", "--json")
    assert said.document["accepted"]
    again = await redrive(up, "messages", "replay", ids[1], "--reason", "too late", "--yes")
    assert again.code == 1
    assert "the message is discarded: only one that is pending can be replayed" in again.err

    async def replayed() -> bool:
        return [row["message_id"] for row in await listed(up, "--status", "replayed")] == [ids[0]]

    await eventually(replayed, within=PATIENCE)
    trail = await redrive(up, "audit", "list", "--letter", f"message-{ids[0]}", "--json")
    actions = [line["action"] for line in trail.document]
    assert actions == ["replay_outcome", "replay_requested", "dead_lettered"]
    assert (await redrive(up, "audit", "verify")).code == 0


async def test_unknown_message_is_refused_by_name(up: Up) -> None:
    """An id that nobody has, or that is none, is quoted with what to do."""
    for wrong in (str(uuid.uuid4()), "nonsense"):
        said = await redrive(up, "messages", "show", wrong)
        assert said.code == 1
        assert f"no dead message has the id {wrong!r}" in said.err


def test_up_brings_each_broker_with_its_bridge(up: Up) -> None:
    """Both run side by side, and others find both."""
    children = {"redis", "bridge-redis", "rabbitmq-names", "rabbitmq", "bridge-rabbitmq"}
    assert children <= set(stack(up)["children"])
    assert set(stack(up)["brokers"]) == {"redis", "rabbitmq"}


def listening(process: psutil.Process) -> set[tuple[str, str]]:
    """Return the addresses that a process listens on; a helper of RabbitMQ that has ended meanwhile, on none."""
    try:
        found = process.net_connections(kind="inet")
        return {(process.name(), each.laddr.ip) for each in found if each.status == psutil.CONN_LISTEN}
    except psutil.NoSuchProcess:
        return set()


def test_nothing_listens_beyond_the_machine(up: Up) -> None:
    """Servers, console, bridges and their helpers take connections from the loopback address alone."""
    places = {place for process in up.family() for place in listening(process)}
    assert len(places) >= 6
    assert {place for place in places if place[1] not in {"127.0.0.1", "::1", "::ffff:127.0.0.1"}} == set()


def test_up_says_where_the_brokers_are(up: Up) -> None:
    """The addresses are printed, and the password is not."""
    place = url(up).rpartition("@")[2].rstrip("/")
    assert f"RabbitMQ   {place}" in up.text
    assert url(up).rpartition("@")[0] not in up.text
    redis = stack(up)["brokers"]["redis"].removeprefix("redis://").partition("/")[0]
    assert f"Redis      {redis}" in up.text


@pytest.mark.long
async def test_rabbitmq_keeps_its_queues_when_its_port_changes(rabbitmq_programs: Programs) -> None:
    """The port is not in the name of its node, to which the data belongs."""
    with tempfile.TemporaryDirectory() as directory:
        async with rabbitmq_server(Path(directory)) as first:
            await first.declare("kept")
            await first.publish("kept", [b"one"])
            port = urlsplit(first.url).port
        assert port is not None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            other = free.getsockname()[1]
        async with rabbitmq_server(Path(directory), other) as second:
            assert urlsplit(second.url).port == other != port
            assert [message.body for message in await second.take("kept")] == [b"one"]


async def test_commands_of_the_page_send_messages(up: Up) -> None:
    """As written in docs/bridges.md: one comes back to its queue, one has no retry left and is a dead message."""
    page = (ROOT / "docs" / "bridges.md").read_text()
    lines = [line.partition("  #")[0] for line in page.splitlines() if line.startswith("redrive messages send ")]
    assert len(lines) == 2
    for line in lines:
        said = await redrive(up, *shlex.split(line)[1:])
        assert (said.code, said.err) == (0, "")

    async def came_back() -> bool:
        return await take(up) == b"invoice 7"

    async def is_dead() -> bool:
        return any(row["original_queue"] == WORK for row in await listed(up, "--queue", WORK, "--status", "pending"))

    await eventually(came_back, within=PATIENCE)
    await eventually(is_dead, within=PATIENCE)
