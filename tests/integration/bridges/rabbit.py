"""A real RabbitMQ for tests: what to ask it, and what to do to it."""

import asyncio
import contextlib
import os
import re
import signal
import uuid
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import aiormq
from aiormq.abc import AbstractChannel, DeliveredMessage
from pamqp import commands

from redrive.bridges.rabbitmq.retry_message_pb2 import RetryMessage
from redrive.starter.stack.children import ChildState, Supervisor
from redrive.starter.stack.placement import ServerPlace
from redrive.starter.stack.ports import reserve
from redrive.starter.stack.rabbitmq import RabbitMQ, get_rabbitmq, node_name, place_rabbitmq
from tests.conftest import eventually

PERSISTENT = 2
# On a machine that is full of other tests.
START_TIMEOUT = timedelta(minutes=3)


class RabbitServer:
    """A server of the tests' own."""

    def __init__(self, server: RabbitMQ, supervisor: Supervisor) -> None:
        self._server = server
        self._supervisor = supervisor

    @property
    def url(self) -> str:
        """Where it is."""
        return self._server.url

    @property
    def pid(self) -> int:
        """Its process."""
        pid = self._supervisor.statuses["rabbitmq"].pid
        assert pid is not None
        return pid

    async def restart(self) -> None:
        """Kill it, and wait until it is back."""
        before = self._supervisor.statuses["rabbitmq"].restarts
        os.kill(self.pid, signal.SIGKILL)

        async def is_back() -> bool:
            status = self._supervisor.statuses["rabbitmq"]
            return status.restarts > before and status.state is ChildState.READY

        await eventually(is_back, within=90)

    async def counts(self, queue: str) -> tuple[int, int]:
        """Return how many messages of a queue wait, and how many are with a consumer. The queue itself is asked."""
        erlang = (
            f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)), '
            "rabbit_amqqueue:info(Q, [messages_ready, messages_unacknowledged])."
        )

        async def told() -> list[str] | None:
            # A busy node does not always let a caller in.
            found = re.findall(r"\{messages_\w+, *(\d+)\}", await self._ask(erlang))
            return found if len(found) == 2 else None

        ready, unacknowledged = await eventually(told)
        return int(ready), int(unacknowledged)

    async def _ask(self, erlang: str) -> str:
        directory = self._server.directory
        process = await asyncio.create_subprocess_exec(
            *(str(next(Path("/usr/lib/erlang").glob("erts-*/bin/erl_call"))), "-e"),
            *("-sname", node_name(directory / "data")),
            *("-c", (directory / ".erlang.cookie").read_text().strip()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"ERL_EPMD_PORT": str(self._server.names_port), "HOME": str(directory)},
        )
        output, _ = await process.communicate(f"{erlang}\n".encode())
        return output.decode()

    @contextlib.asynccontextmanager
    async def channel(self) -> AsyncIterator[AbstractChannel]:
        """A channel with confirmations, for the length of a block."""
        connection = await aiormq.connect(self.url)
        try:
            yield await connection.channel()
        finally:
            await connection.close()

    async def declare(self, *queues: str) -> None:
        """Make durable queues."""
        async with self.channel() as channel:
            for queue in queues:
                await channel.queue_declare(queue, durable=True)

    async def publish(self, queue: str, bodies: Iterable[bytes]) -> None:
        """Put messages into a queue, and wait until it has them."""
        properties = commands.Basic.Properties(delivery_mode=PERSISTENT)
        async with self.channel() as channel:
            for body in bodies:
                await channel.basic_publish(body, routing_key=queue, mandatory=True, properties=properties)

    async def take(self, queue: str) -> list[DeliveredMessage]:
        """Take all that is in a queue."""
        messages: list[DeliveredMessage] = []
        async with self.channel() as channel:
            while True:
                message = await channel.basic_get(queue, no_ack=True)
                if isinstance(message.delivery, commands.Basic.GetEmpty):
                    return messages
                messages.append(message)


@contextlib.asynccontextmanager
async def rabbitmq_server(directory: Path, port: int | None = None) -> AsyncIterator[RabbitServer]:
    """Run a server while the block lasts."""
    programs = await asyncio.to_thread(get_rabbitmq)
    with contextlib.ExitStack() as undo:

        def choose(what: str, asked: int | None, preferred: int) -> int:
            reservation = reserve(what, asked=asked, preferred=preferred)
            undo.callback(reservation.close)
            return reservation.number

        home = directory / "rabbitmq"
        server = place_rabbitmq(programs, ServerPlace(programs.server, home, home, None), port, choose)
        supervisor = Supervisor(directory)
        try:
            for program in server.children:
                await supervisor.start(replace(program, ready_timeout=START_TIMEOUT))
            yield RabbitServer(server, supervisor)
        finally:
            await supervisor.stop()


def retry_message(number: int, queue: str, *, seed: str = "", **fields: object) -> bytes:
    """Make the bytes of a message; the same number and seed are the same message."""
    message = RetryMessage(
        message_id=str(uuid.uuid5(uuid.NAMESPACE_OID, f"{seed}{number}")),
        original_payload=str(number).encode(),
        original_queue=queue,
        error_reason="the service did not answer",
        **fields,  # type: ignore[arg-type]  # fields of the message
    )
    return message.SerializeToString()
