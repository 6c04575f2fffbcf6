"""A small HTTP server on a real socket, whose answers a test writes byte by byte."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from hypothesis import settings

from redrive.http import new_http_client

# A busy machine makes single examples slow, which says nothing about the code.
settings.register_profile("redrive", deadline=None)
settings.load_profile("redrive")

Answer = Callable[["Received", asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class Received:
    """A request as it came over the wire."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Server:
    """Answers each path as the test said, and remembers what was asked."""

    url: str = ""
    received: list[Received] = field(default_factory=list)
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    otherwise: Answer | None = None
    called: asyncio.Event = field(default_factory=asyncio.Event)

    def on(self, path: str, *answers: Answer) -> None:
        """Answer calls of the path with these, in order; the last one stays."""
        self.answers[path] = list(answers)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            request = await _read(reader)
            self.received.append(request)
            self.called.set()
            place = request.target.partition("?")[0]
            answers = [self.otherwise] if self.otherwise else self.answers[place]
            await (answers.pop(0) if len(answers) > 1 else answers[0])(request, writer)
            await writer.drain()
        writer.close()


async def _read(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    method, target, _ = first.split(" ")
    return Received(method, target, headers, body)


def raw(data: bytes) -> Answer:
    """Answer with exactly these bytes and hang up."""

    async def answer(_request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return answer


def reply(status: int, body: Any = None, **headers: str) -> Answer:
    """Answer with a status, a JSON (or bytes) body and headers; `_` in a header's name stands for `-`."""
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} Any\r\ncontent-length: {len(content)}\r\nconnection: close\r\n{named}\r\n"
    return raw(head.encode() + content)


def endless(chunk: bytes, pause: float = 0.0, status: int = 200) -> Answer:
    """Answer with a body that never ends, one chunk every pause."""

    async def answer(_request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status} Any\r\nconnection: close\r\n\r\n".encode())
        while not writer.is_closing():
            writer.write(chunk)
            await writer.drain()
            await asyncio.sleep(pause)

    return answer


async def hang(_request: Received, writer: asyncio.StreamWriter) -> None:
    """Take the request and say nothing until the caller hangs up."""
    while not writer.is_closing():  # noqa: ASYNC110 - nothing else tells that the other side is gone
        await asyncio.sleep(0.01)


async def reset(_request: Received, writer: asyncio.StreamWriter) -> None:
    """Cut the connection without an answer."""
    writer.transport.abort()


@asynccontextmanager
async def listening() -> AsyncIterator[Server]:
    """Serve for the length of a block."""
    double = Server()
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(asyncio.CancelledError):
            await double.handle(reader, writer)
        writer.close()

    listener = await asyncio.start_server(connected, "127.0.0.1", 0)
    double.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    yield double
    listener.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A server that lives for one test."""
    async with listening() as double:
        yield double


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """The product's own connection pool."""
    async with new_http_client() as client:
        yield client
