"""Connections to RabbitMQ, the queues that must exist, and values on AMQP's wire, read within limits.

pamqp reads a header table recursively, copies the rest for each entry, and raises for text that is not UTF-8 or an
impossible time. Any of that ends the connection, and the broker delivers the message again and again. Here a table
costs one pass over its bytes, and unreadable values are left out: the message arrives and is judged.
"""

import asyncio
import contextlib
import datetime
import struct
from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import aiormq
from aiormq import Channel
from aiormq.abc import AbstractConnection
from aiormq.exceptions import AMQPError, ChannelInvalidStateError, ChannelNotFoundEntity
from pamqp import commands, decode

from redrive.errors import InvalidInput, Unavailable

DEPTH: Final = 8
ENTRIES: Final = 1000
_LENGTH: Final = struct.Struct(">I")
_SIZES: Final = {
    **dict.fromkeys(b"tbB", 1),
    **dict.fromkeys(b"su", 2),
    **dict.fromkeys(b"Iif", 4),
    **dict.fromkeys(b"lLdT", 8),
    **dict.fromkeys(b"V\0", 0),
    ord("D"): 5,
}
_SIZED: Final = frozenset(b"SxFA")
CONNECT_TIMEOUT: Final = 10.0
_OWN_CHANNELS: Final = 1000
# A broker that stops answering without closing the connection is noticed after twice this time.
HEARTBEAT: Final = 10
# What a broken connection raises, wherever it is used.
BROKER_ERRORS: Final = (AMQPError, ChannelInvalidStateError, OSError, TimeoutError)


def install() -> None:
    """Read all values of this process's connections within the limits."""
    decode.METHODS["table"] = table
    decode.METHODS["shortstr"] = short_string
    decode.METHODS["timestamp"] = timestamp


def table(value: bytes) -> tuple[int, dict[str, Any]]:
    """Read a table; return its size in bytes, and what could be read."""
    if len(value) < 4:
        raise ValueError("a table without its length")
    length = _LENGTH.unpack_from(value)[0]
    return length + 4, _Reader(value).table(4, min(4 + length, len(value)), DEPTH)


def short_string(value: bytes) -> tuple[int, str]:
    """Read a text of up to 255 bytes, with replacement marks where it is not UTF-8."""
    if not value:
        raise ValueError("a text without its length")
    length = value[0]
    return length + 1, value[1 : length + 1].decode(errors="replace")


def timestamp(value: bytes) -> tuple[int, datetime.datetime | None]:
    """Read a time; an impossible one is None."""
    try:
        return decode.timestamp(value)
    except (ValueError, OverflowError, OSError):
        return 8, None


class _Reader:
    """One pass over the bytes of a table, with a budget of entries for its whole content."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = ENTRIES

    def table(self, at: int, end: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while at < end and self._left > 0:
            name_end = at + 1 + self._data[at]
            if name_end >= end:
                break
            after, value = self._value(name_end, end, depth)
            if after > end:
                break
            found[self._data[at + 1 : name_end].decode(errors="replace")] = value
            at = after
        return found

    def array(self, at: int, end: int, depth: int) -> list[Any]:
        found: list[Any] = []
        while at < end and self._left > 0:
            at, value = self._value(at, end, depth)
            found.append(value)
        return found

    def _value(self, at: int, end: int, depth: int) -> tuple[int, Any]:
        """Return where a value ends, and the value; a position beyond the end if it is invalid."""
        self._left -= 1
        kind, start = self._data[at], at + 1
        if kind in _SIZES:
            after = start + _SIZES[kind]
            return after, self._scalar(kind, start, after) if after <= end else None
        if kind not in _SIZED or start + 4 > end:
            return end + 1, None
        start, after = start + 4, start + 4 + _LENGTH.unpack_from(self._data, start)[0]
        return after, self._sized(kind, start, after, depth) if after <= end else None

    def _scalar(self, kind: int, start: int, after: int) -> Any:
        if kind == ord("T"):
            return timestamp(self._data[start:after])[1]
        return decode.TABLE_MAPPING[bytes([kind])](self._data[start:after])[1]

    def _sized(self, kind: int, start: int, after: int, depth: int) -> Any:
        if kind == ord("S"):
            return decode.long_str(self._data[start - 4 : after])[1]
        if kind == ord("x"):
            return self._data[start:after]
        if depth <= 1:
            return None
        read = self.table if kind == ord("F") else self.array
        return read(start, after, depth - 1)


install()


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
