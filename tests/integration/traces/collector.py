"""A collector of traces: takes what OTLP exporters send over HTTP, and hands out the spans."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tests.conftest import eventually
from tests.unit.redrive.conftest import Received, Server


@dataclass(frozen=True)
class Span:
    """A span as it came over the wire."""

    service: str
    trace: str
    id: str
    parent: str
    name: str
    failed: bool
    facts: dict[str, Any]
    links: list[str]


def named(traceparent: str) -> tuple[str, str]:
    """Return the trace and the span that another process is told of."""
    _, trace, span, _ = traceparent.split("-")
    return trace, span


@dataclass
class Collector:
    """What was collected so far."""

    server: Server = field(default_factory=Server)

    @property
    def spans(self) -> list[Span]:
        """All spans."""
        return [span for request in self.server.received for span in _spans(request.body)]

    @property
    def bytes(self) -> bytes:
        """All that was sent, as it was sent."""
        return b"".join(request.body for request in self.server.received)

    async def until(self, *names: str, where: Callable[[Span], bool] = lambda _: True) -> list[Span]:
        """Wait until there is a span of each name, among those that fit, and return all that fit."""

        async def there() -> list[Span] | None:
            fitting = [span for span in self.spans if where(span)]
            return fitting if {span.name for span in fitting} >= set(names) else None

        return await eventually(there)


@contextlib.asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """Collect while the block lasts."""
    collector = Collector()
    collector.server.on("/v1/traces", _take)
    listener = await asyncio.start_server(collector.server.handle, "127.0.0.1", 0)
    collector.server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield collector
    finally:
        listener.close()


async def _take(_request: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")


def _spans(body: bytes) -> list[Span]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        _span(str(_facts(group.resource.attributes)["service.name"]), span)
        for group in request.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def _span(service: str, span: WireSpan) -> Span:
    return Span(
        service=service,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        name=span.name,
        failed=span.status.code == Status.STATUS_CODE_ERROR,
        facts=_facts(span.attributes),
        links=[link.trace_id.hex() for link in span.links],
    )


def _facts(attributes: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in attributes}
