"""Traces by OpenTelemetry: on if OTEL_EXPORTER_OTLP_ENDPOINT is set. Otherwise none of it is imported.

A span has ids, names, counts and categories: FACTS lists them, and everything else is left out. It never has payloads,
headers or texts of errors.
"""

import contextlib
import contextvars
import functools
import importlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Literal

from redrive.errors import InvalidInput

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from temporalio.contrib.opentelemetry import TracingInterceptor

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
FACTS: Final = frozenset(
    {
        "tenant_id",
        "run_id",
        "pipeline",
        "step",
        "cycle",
        "attempt",
        "max_attempts",
        "operation",
        "method",
        "host",
        "route",
        "http_status",
        "category",
        "error_type",
        "event_id",
        "event_type",
        "source",
        "count",
    }
)
"""Every attribute that a span of ours may have; named as in log lines."""

_labels: Final[contextvars.ContextVar[Mapping[str, str]]] = contextvars.ContextVar("labels", default={})  # noqa: B039

Kind = Literal["client", "server", "consumer", "producer"]
Fact = str | int | None
_NOTHING: Final = contextlib.nullcontext()


@functools.cache
def is_on() -> bool:
    """Tell whether this process traces."""
    if not os.environ.get(ENDPOINT):
        return False
    try:
        importlib.import_module("temporalio.contrib.opentelemetry")
    except ImportError:
        return False
    return True


def start_tracing(service: str) -> None:
    """Send the spans of this process to the collector, if one is named. Call it once, in an entry point."""
    if not os.environ.get(ENDPOINT):
        return
    try:
        from redrive.trace_export import export_spans
    except ImportError as error:
        raise InvalidInput(f"{ENDPOINT} is set; install what it needs with `pip install redrive[otel]`") from error
    export_spans(service)


def finish_tracing() -> None:
    """Send the spans that are left, unless the collector is slow."""
    if is_on():
        from redrive.trace_export import finish

        finish()


def interceptors() -> "list[TracingInterceptor]":
    """Return the interceptors with which a Temporal client, and its workers, pass traces on."""
    if not is_on():
        return []
    from redrive.trace_interceptor import TolerantTracing

    return [TolerantTracing()]


@contextlib.contextmanager
def labelled(labels: Mapping[str, str]) -> Iterator[None]:
    """Give a run's labels, as `label.<name>`, to spans that are opened in a block, and by `note` to the open one."""
    token = _labels.set(labels)
    try:
        yield
    finally:
        _labels.reset(token)


def span(
    name: str,
    kind: Kind,
    *,
    carrier: Mapping[str, str] | None = None,
    links: Iterable[Mapping[str, str]] = (),
    **facts: Fact,
) -> contextlib.AbstractContextManager[None]:
    """Open a span for the length of a block; an error that leaves the block marks it.

    It belongs to the current trace; with a carrier, to the trace that the carrier names, or to a new one.
    """
    return _span(name, kind, carrier, links, facts) if is_on() else _NOTHING


@contextlib.contextmanager
def _span(
    name: str,
    kind: Kind,
    carrier: Mapping[str, str] | None,
    links: Iterable[Mapping[str, str]],
    facts: Mapping[str, Fact],
) -> Iterator[None]:
    from opentelemetry.trace import Link, SpanKind, get_current_span, get_tracer

    others = [get_current_span(_named_by(other)).get_span_context() for other in links]
    with get_tracer("redrive").start_as_current_span(
        name,
        context=None if carrier is None else _named_by(carrier),
        kind=SpanKind[kind.upper()],
        links=[Link(other) for other in others if other.is_valid],
        record_exception=False,
        set_status_on_exception=False,
    ):
        note(**facts)
        try:
            yield
        except Exception as error:
            mark_failed(error_type=type(error).__name__)
            raise


def note(**facts: Fact) -> None:
    """Add facts to the open span."""
    if is_on():
        from opentelemetry.trace import get_current_span

        known: dict[str, str | int] = {k: v for k, v in facts.items() if k in FACTS and v is not None}
        get_current_span().set_attributes(known | {f"label.{name}": value for name, value in _labels.get().items()})


def mark_failed(**facts: Fact) -> None:
    """Mark the open span as failed, with the kind of failure."""
    if is_on():
        from opentelemetry.trace import StatusCode, get_current_span

        get_current_span().set_status(StatusCode.ERROR)
        note(**facts)


def trace_headers() -> dict[str, str]:
    """Return the headers that name this trace to another process. Baggage is not sent: it may hold anything."""
    headers: dict[str, str] = {}
    if is_on():
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        TraceContextTextMapPropagator().inject(headers)
    return headers


def trace_id() -> str | None:
    """Return the id of the current trace."""
    from opentelemetry.trace import format_trace_id, get_current_span

    context = get_current_span().get_span_context()
    return format_trace_id(context.trace_id) if context.is_valid else None


def _named_by(carrier: Mapping[str, str]) -> "Context":
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(carrier, Context())
