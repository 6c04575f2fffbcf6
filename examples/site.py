"""A small HTTP server on a real socket, for stand-ins of services in examples. It can be stopped and started again."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, unquote


@dataclass(frozen=True)
class Request:
    """A request as it came over the wire. Names of headers are in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        """Where it goes, without the query."""
        return unquote(self.target.partition("?")[0])

    @property
    def query(self) -> dict[str, str]:
        """The first value of each name in the query."""
        return {name: values[0] for name, values in parse_qs(self.target.partition("?")[2]).items()}

    @property
    def document(self) -> dict[str, Any]:
        """The JSON object that it carries, or an empty one."""
        return json.loads(self.body) if self.body else {}


@dataclass(frozen=True)
class Answer:
    """A status, a JSON body and headers, sent after a while."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    after: float = 0


Respond = Callable[[Request], Answer]


class Site:
    """Answers requests on a port of this machine, which it keeps over stops, and remembers what was asked."""

    def __init__(self, respond: Respond) -> None:
        self.received: list[Request] = []
        self._respond = respond
        self._port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Its address, once it has been started."""
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listen: on a free port at the first time, then on the same one."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse connections from now on, and cut those that are open."""
        if self._server:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task:
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
        # Also a cancellation: asyncio's streams log a canceled connection as an error.
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._converse(reader, writer)
        writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, target, _ = first.split(" ")
        request = Request(method, target, headers, body)
        self.received.append(request)
        answer = self._respond(request)
        await asyncio.sleep(answer.after)
        writer.write(_encoded(answer))
        await writer.drain()


@contextlib.asynccontextmanager
async def serving(respond: Respond) -> AsyncIterator[Site]:
    """Serve for the length of a block."""
    site = Site(respond)
    await site.start()
    try:
        yield site
    finally:
        await site.stop()


def _encoded(answer: Answer) -> bytes:
    content = b"" if answer.body is None else json.dumps(answer.body).encode()
    headers = {"content-type": "application/json", "content-length": str(len(content)), "connection": "close"}
    lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in (headers | answer.headers).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content
