"""Connections to RabbitMQ, and the queues that must be there."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import aiormq
from aiormq.abc import AbstractConnection
from aiormq.exceptions import AMQPError, ChannelInvalidStateError, ChannelNotFoundEntity

from redrive.errors import InvalidInput, Unavailable

CONNECT_TIMEOUT: Final = 10.0
# A broker that answers nobody, without closing the connection, is noticed after twice this.
HEARTBEAT: Final = 10
# What a connection that breaks raises, wherever it is being used.
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
    """Say in a few words why a broker did not do it."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error)[:200] or type(error).__name__


async def ensure_queue(connection: AbstractConnection, name: str) -> None:
    """Make a durable queue when there is none of that name; one that is there is taken as it is."""
    # A channel of its own: the broker closes it when the queue is missing.
    probe = await connection.channel()
    try:
        await probe.queue_declare(name, passive=True)
    except ChannelNotFoundEntity:
        maker = await connection.channel()
        await maker.queue_declare(name, durable=True)
        await maker.close()
    else:
        await probe.close()
