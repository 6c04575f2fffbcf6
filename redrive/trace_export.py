"""Exports this process's spans: in batches, in a thread, without the texts of errors."""

import threading
from collections.abc import Sequence
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace import Status

# A collector that is down must not delay a command, or a worker that is told to stop.
_TIMEOUT: Final = 2.0
_EXCEPTION: Final = "exception"
_EXCEPTION_TYPE: Final = "exception.type"


def export_spans(service: str) -> None:
    """Send the spans of this process to the collector. OpenTelemetry's own variables set everything but the name."""
    named = Resource({SERVICE_NAME: service}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=Resource.create(named.attributes), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(PlainExporter()))
    trace.set_tracer_provider(provider)


def finish() -> None:
    """Send what is left, within a moment."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        last = threading.Thread(target=provider.shutdown, daemon=True)
        last.start()
        last.join(_TIMEOUT)


class PlainExporter(OTLPSpanExporter):
    """Send spans by OTLP over HTTP, without the texts and stacks of errors, which may quote what a caller sent."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch."""
        return super().export([_plain(span) for span in spans])


def _plain(span: ReadableSpan) -> ReadableSpan:
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        events=[_plain_event(event) for event in span.events],
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _plain_event(event: Event) -> Event:
    if event.name != _EXCEPTION:
        return event
    kind = (event.attributes or {}).get(_EXCEPTION_TYPE, "")
    return Event(event.name, {_EXCEPTION_TYPE: kind}, event.timestamp)
