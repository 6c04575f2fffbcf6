"""Connections that are kept open for nothing: each is closed, and those that are served are left alone."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from redrive.console.app import build_app
from redrive.console.request_limits import guarded
from redrive.console.telemetry import RequestMetrics
from redrive.settings import Settings
from tests.conftest import eventually
from tests.integration.console.conftest import MakeToken, QuietServer

PATIENCE = 30
SHORT = timedelta(seconds=0.5)
HALF = b"GET /slow HTTP/1.1\r\nHost: x\r\n"


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer after longer than a header may take, without reading the body."""
    if scope["path"] == "/slow":
        await asyncio.sleep(3 * SHORT.total_seconds())
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, most: int = 100) -> AsyncIterator[int]:
    """Serve an application as the console does, with short times, and yield the port."""
    protocol = guarded(SHORT, most, RequestMetrics())
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, http=protocol, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        server = QuietServer(config)
        running = asyncio.create_task(server.serve([listening]))
        await eventually(lambda: asyncio.sleep(0, server.started))
        yield listening.getsockname()[1]
        server.should_exit = True
        await running


async def _until_closed(port: int, first: bytes, drop: bytes) -> bytes:
    """Send something, then a drop now and then, and return what came back until the server closed the connection."""
    loop, received = asyncio.get_running_loop(), b""
    # Not a stream: that forgets what has come when a drop meets a closed connection.
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setblocking(False)
        await loop.sock_sendall(connection, first)

        async def trickle() -> None:
            with contextlib.suppress(OSError):
                while True:
                    await asyncio.sleep(0.05)
                    await loop.sock_sendall(connection, drop)

        dropping = asyncio.create_task(trickle())
        try:
            async with asyncio.timeout(PATIENCE):
                with contextlib.suppress(ConnectionError):
                    while part := await loop.sock_recv(connection, 65536):
                        received += part
        finally:
            dropping.cancel()
            await asyncio.gather(dropping, return_exceptions=True)
    return received


@pytest.mark.parametrize(
    ("first", "drop"),
    [(b"", b""), (HALF, b""), (HALF, b"a"), (b"", b"\r\n")],
    ids=["silent", "half", "dripping", "empty-lines"],
)
async def test_a_header_that_does_not_come_closes_its_connection(first: bytes, drop: bytes) -> None:
    """Twenty clients that never finish their header are all put out, however they keep the connection busy."""
    async with serving(_answer) as port:
        answers = await asyncio.gather(*(_until_closed(port, first, drop) for _ in range(20)))
    assert not any(b"200" in answer for answer in answers)


async def test_a_body_that_nobody_reads_does_not_keep_a_connection() -> None:
    """The answer came before the body: whoever goes on to send that, byte by byte, is put out."""
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
    async with serving(_answer) as port:
        assert b"200 OK" in await _until_closed(port, head, b"a")


async def test_a_slow_answer_is_waited_for() -> None:
    """The time for the header ends with the header, for each request of a connection."""
    async with serving(_answer) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(HALF[:10])
            await asyncio.sleep(SHORT.total_seconds() / 5)
            writer.write(HALF[10:] + b"\r\n")
            answer = await asyncio.wait_for(reader.readuntil(b"ok"), PATIENCE)
            assert b"200 OK" in answer
        writer.close()


async def test_only_so_many_connections_are_taken() -> None:
    """The next one is told why, at once; when one has gone there is room."""
    async with serving(_answer, most=2) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        refused = await _until_closed(port, b"", b"")
        assert b"503 Service Unavailable" in refused
        assert b"REDRIVE_MAX_CONNECTIONS" in refused
        for _, writer in held:
            writer.close()

        async def is_served() -> bool:
            return b"200" in await _until_closed(port, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"")

        await eventually(is_served)


@pytest.fixture
async def hurried(console_settings: Settings) -> AsyncIterator[FastAPI]:
    """A console that waits a short time for bodies."""
    app = build_app(console_settings.model_copy(update={"body_timeout": SHORT}))
    async with app.router.lifespan_context(app):
        yield app


@pytest.mark.parametrize("drop", [b"", b" "], ids=["half", "dripping"])
async def test_a_body_that_does_not_come_is_refused(hurried: FastAPI, make_token: MakeToken, drop: bytes) -> None:
    """The answer names the limit, and the connection is closed."""
    head = f"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {await make_token()}\r\n"
    head += 'Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n{"pipeline": "three",'
    async with serving(hurried) as port:
        answer = await _until_closed(port, head.encode(), drop)
    assert answer.startswith(b"HTTP/1.1 408 ")
    problem = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert problem["code"] == "body_timeout"
    assert "REDRIVE_BODY_TIMEOUT" in problem["detail"]
