"""Limits on idle connections: slow headers, slow bodies, and too many of either.

The server has no limits of its own for the first two.
"""

import asyncio
import time
from datetime import timedelta
from http import HTTPStatus

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from redrive.console.metrics import RequestMetrics
from redrive.console.problems import Refusal, respond


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
