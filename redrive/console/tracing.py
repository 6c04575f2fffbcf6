"""A span for every request: it continues the caller's trace, if there is one."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redrive.tracing import mark_failed, note, span

_HEADERS = {b"traceparent", b"tracestate"}


class Tracing:
    """Open a span while a request is answered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and record the answer's status."""

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                note(http_status=message["status"])
                if message["status"] >= 500:
                    mark_failed()
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        carrier = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _HEADERS}
        with span("console.request", "server", carrier=carrier):
            await self._app(scope, receive, noted)
