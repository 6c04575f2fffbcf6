"""Connections to RabbitMQ, and the queues that must exist."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import aiormq
from aiormq import Channel
from aiormq.abc import AbstractConnection
from aiormq.exceptions import AMQPError, ChannelInvalidStateError, ChannelNotFoundEntity
from pamqp import commands

from redrive.bridges.rabbitmq import values as amqp_values
from redrive.errors import InvalidInput, Unavailable

amqp_values.install()

CONNECT_TIMEOUT: Final = 10.0
_OWN_CHANNELS: Final = 1000
# A broker that stops answering without closing the connection is noticed after twice this time.
HEARTBEAT: Final = 10
# What a broken connection raises, wherever it is used.
BROKER_ERRORS: Final = (AMQPError, ChannelInvalidStateError, OSError, TimeoutError)


@contextlib.asynccontextmanager
async def connected(url: str, name: str) -> AsyncIterator[AbstractConnection]:
    """Open a connection for the length of a block, or raise Unavailable without the password."""
    address = _address(url)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            connection = await aiormq.connect(address, client_properties={"connection_name": name})
    except BROKER_ERRORS as error:
        raise Unavailable(f"RabbitMQ at {_place(url)} cannot be reached: {reason(error)}") from None
    try:
        yield connection
    finally:
        with contextlib.suppress(*BROKER_ERRORS):
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await connection.close()


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        fits = parts.scheme in {"amqp", "amqps"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise InvalidInput("RABBITMQ_URL is not a valid address: it must read amqp://user:password@host:port")
    if "heartbeat=" in parts.query:
        return url
    query = f"{parts.query}&heartbeat={HEARTBEAT}" if parts.query else f"heartbeat={HEARTBEAT}"
    return urlunsplit(parts._replace(query=query))


def _place(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or 5672}"


def reason(error: BaseException) -> str:
    """Say in a few words why a broker refused."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error)[:200] or type(error).__name__


class Room:
    """How many bytes of messages may be held at once: a broker limits only their number."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._free = asyncio.Event()
        self._free.set()

    def take(self, size: int) -> None:
        """Count a message that is held."""
        self._held += size
        if self._held >= self._limit:
            self._free.clear()

    def give(self, size: int) -> None:
        """Count messages that are no longer held."""
        self._held -= size
        if self._held < self._limit:
            self._free.set()

    async def free(self) -> None:
        """Wait until another message may be held, whatever its size."""
        await self._free.wait()


class LimitedChannel(Channel):
    """A channel that reads the next message only when there is room for it; until then it stays in the socket."""

    room: Room

    async def _on_deliver_frame(self, frame: commands.Basic.Deliver) -> None:
        await self.room.free()
        await super()._on_deliver_frame(frame)


async def open_limited(connection: AbstractConnection, room: Room) -> LimitedChannel:
    """Open a channel that takes no more than there is room for."""
    # Above the channel numbers that the connection assigns itself.
    number = max(connection.channels, default=0) + _OWN_CHANNELS
    channel = LimitedChannel(connection, number, frame_buffer=connection.FRAME_BUFFER_SIZE)
    channel.room = room
    connection.channels[number] = channel
    await channel.open()
    return channel


async def ensure_queue(connection: AbstractConnection, name: str) -> None:
    """Create a durable queue if none has that name; an existing one is used as it is."""
    # On a separate channel: the broker closes it if the queue is missing.
    probe = await connection.channel()
    try:
        await probe.queue_declare(name, passive=True)
    except ChannelNotFoundEntity:
        maker = await connection.channel()
        await maker.queue_declare(name, durable=True)
        await maker.close()
    else:
        await probe.close()
