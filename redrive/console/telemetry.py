"""The console's own requests: metrics for Prometheus, and a span for each. Workers count dead letters.

A span continues the caller's trace, if there is one.
"""

import time
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redrive.tracing import mark_failed, note, span

_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15)
_HEADERS = {b"traceparent", b"tracestate"}


class RequestMetrics:
    """Count requests by route, method and status, and how long they took."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self._requests = Counter("redrive_console_requests", "Requests answered", labels, registry=self.registry)
        self._seconds = Histogram(
            "redrive_console_request_seconds",
            "Time to the first byte of the answer",
            ("method", "route"),
            buckets=_BUCKETS,
            registry=self.registry,
        )

        self._refusals = Counter(
            "redrive_console_refusals",
            "What was refused by a limit",
            ("limit",),
            registry=self.registry,
        )

    def refused(self, limit: str) -> None:
        """Count a refusal by a limit."""
        self._refusals.labels(limit).inc()

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)


class Counting:
    """Report every answer to the metrics."""

    def __init__(self, app: ASGIApp, *, metrics: RequestMetrics, api: str) -> None:
        self._app = app
        self._metrics = metrics
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and count the answer when it starts."""
        began = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = self._route(scope)
                method = scope["method"] if scope["method"] in _METHODS else "other"
                note(method=method, route=path)
                self._metrics.answered(method, path, message["status"], time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, counted if scope["type"] == "http" else send)

    def _route(self, scope: Scope) -> str:
        route = scope.get("route")
        if not isinstance(route, Route):
            # Paths without a route are arbitrary: one label for all of them.
            return "unknown"
        # A route does not know its router's prefix, and pages share route names with the API.
        return self._api + route.path if scope["path"].startswith(f"{self._api}/") else route.path


_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


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
