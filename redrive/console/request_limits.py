"""Limits on requests before the routes: idle connections, slow headers and bodies, sizes, content types and JSON.

Requests with a body are authenticated and checked once, here.
"""

import asyncio
import time
from datetime import timedelta
from http import HTTPStatus
from typing import Final

from fastapi import Request
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from redrive.console.authentication import principal, signed_in_owner
from redrive.console.headers import WEB_UI_PATH
from redrive.console.problems import Place, Refusal, respond
from redrive.console.telemetry import RequestMetrics
from redrive.console.web.routes import KNOWN, answer_refusal
from redrive.contracts import MESSAGE_ELEMENT_LIMIT, MIB
from redrive.documents import first_problem, parse_json
from redrive.errors import TooLarge

BODY_LIMIT: Final = MIB + 64 * 1024
FORM_LIMIT: Final = 16 * 1024
API: Final = "/api/"
# The only paths to which anybody may send a body: small forms, which check themselves who sends them.
FOR_STRANGERS: Final = frozenset({"/sign-in", "/sign-out", "/tenant"})
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_JSON: Final = "application/json"
# A longer body is checked in a thread: other requests must not wait for it.
_CHECKED_AT_ONCE: Final = 32 * 1024


def guarded(header_timeout: timedelta, most: int, metrics: RequestMetrics) -> type[H11Protocol]:
    """Return a server protocol that closes connections whose header does not arrive, and limits their number."""

    class Guarded(H11Protocol):
        """One connection."""

        _closing: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > most:
                metrics.refused("max_connections")
                transport.write(_refusal(most))
                transport.close()
            else:
                self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """Limit the time of a header from its first byte on, and of the first one from the connection on."""
            if self._is_asked():
                self._stop()
            elif self._closing is None and not self.transport.is_closing():
                self._closing = self.loop.call_later(header_timeout.total_seconds(), self._close)

        def _is_asked(self) -> bool:
            # None before the first request, whatever its type says.
            cycle: RequestResponseCycle | None = self.cycle
            return cycle is not None and not cycle.response_complete

        def _stop(self) -> None:
            if self._closing is not None:
                self._closing.cancel()
                self._closing = None

        def _close(self) -> None:
            metrics.refused("header_timeout")
            # Not `close`: that waits until what was written is read.
            self.transport.abort()

    return Guarded


def _refusal(most: int) -> bytes:
    status = HTTPStatus.SERVICE_UNAVAILABLE
    text = f"more than {most} open connections (REDRIVE_MAX_CONNECTIONS); try again"
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: text/plain\r\nconnection: close\r\nretry-after: 5"
    return f"{head}\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode()


class BodyDeadline:
    """Answer 408 if a body takes too long."""

    def __init__(self, app: ASGIApp, *, timeout: timedelta, metrics: RequestMetrics) -> None:
        self._app = app
        self._timeout = timeout.total_seconds()
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on; a body that does not arrive counts as a disconnected client."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        ends: float | None = time.monotonic() + self._timeout
        late = answered = False

        async def in_time() -> Message:
            nonlocal ends, late
            if ends is None:
                return await receive()
            if late:
                return {"type": "http.disconnect"}
            try:
                async with asyncio.timeout(ends - time.monotonic()):
                    message = await receive()
            except TimeoutError:
                late = True
                return {"type": "http.disconnect"}
            if not message.get("more_body", False):
                ends = None
            return message

        async def noted(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            await self._app(scope, in_time, noted)
        except ClientDisconnect:
            if not late:
                raise
        if late and not answered:
            self._metrics.refused("body_timeout")
            await respond(self._refusal())(scope, receive, send)

    def _refusal(self) -> Refusal:
        return Refusal(
            408,
            "body_timeout",
            f"the body was not complete after {self._timeout:g} s (REDRIVE_BODY_TIMEOUT)",
            "send it again, faster or smaller",
            headers={"Connection": "close"},
        )


class BodyGuard:
    """Read the body of a request, refuse what no route could accept, and pass the rest on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http" or scope["method"] not in _WITH_BODY:
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            body = await _admitted(request, receive)
        except KNOWN as error:
            answer = await answer_refusal(request, error)
            await answer(scope, receive, send)
            return
        if body is not None:
            await self._app(scope, _replayed(body, receive), send)


async def _admitted(request: Request, receive: Receive) -> bytes | None:
    """Return the body of a request that may pass, or None if the client disconnected."""
    if request.scope["path"] in FOR_STRANGERS:
        return await _read(request.headers, receive, FORM_LIMIT)
    is_web_ui = request.scope["path"].startswith(f"{WEB_UI_PATH}/")
    await (signed_in_owner if is_web_ui else principal)(request)
    body = await _read(request.headers, receive, BODY_LIMIT)
    if body and request.scope["path"].startswith(API):
        _check_kind(request.headers)
        if len(body) > _CHECKED_AT_ONCE:
            await asyncio.to_thread(_check, body)
        else:
            _check(body)
    return body


async def _read(headers: Headers, receive: Receive, limit: int) -> bytes | None:
    """Return the body, or None if the client disconnected."""
    stated = headers.get("content-length", "0")
    if stated.isdecimal() and (len(stated) > 18 or int(stated) > limit):
        raise _too_large(f"{stated[:18]} bytes", limit)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(f"more than {limit} bytes", limit)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _too_large(what: str, limit: int) -> Refusal:
    return Refusal(
        413, "too_large", f"the body has {what}; the limit is {limit}", "send less, or a reference to the data"
    )


def _check_kind(headers: Headers) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _JSON:
        raise Refusal(
            415,
            "unsupported_media_type",
            f"header.Content-Type: {kind[:80]!r} is not read here",
            f"send JSON with Content-Type: {_JSON}",
            places=[Place(place="header.Content-Type", problem=f"only {_JSON} is read")],
        )


def _check(body: bytes) -> None:
    try:
        value = parse_json(body, MESSAGE_ELEMENT_LIMIT)
    except TooLarge as error:
        raise Refusal(413, "too_large", f"the body has {error}", "send less, or a reference to the data") from None
    except ValueError as error:
        raise _malformed("body", f"not valid JSON: {error}") from None
    problem = first_problem(value, MESSAGE_ELEMENT_LIMIT)
    if problem:
        raise _malformed(f"body{problem.place}", problem.sentence)


def _malformed(place: str, what: str) -> Refusal:
    places = [Place(place=place, problem=what)]
    return Refusal(400, "malformed_json", f"{place}: {what}", "send one valid JSON document", places=places)


def _replayed(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
