"""How log lines are printed: redacted, as JSON or for people, and those of an outage once. Set up in `logs.py`."""

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from redrive.contracts import Activity
from redrive.logs import FIELDS, Format, Level, said_once
from redrive.redaction.redactor import Redactor
from redrive.tracing import is_on, trace_id

# They log each request or poll, which `service.called` covers, each attempt to reach a trace collector, and (the
# SDK, when debugging) whole inputs.
_CHATTY: Final = {
    "httpx": logging.WARNING,
    "httpcore": logging.WARNING,
    "urllib3": logging.WARNING,
    "asyncio": logging.INFO,
    "temporalio": logging.INFO,
    "opentelemetry.exporter": logging.ERROR,
}
_LONGEST: Final = 16 * 1024
# Temporal adds these to a record; other extras may be payloads.
_EXTRAS: Final = frozenset(FIELDS) | {"temporal_activity", "temporal_workflow"}
# Error text is untrusted: without this it could move a terminal's cursor.
_CONTROL: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


# Made by us, or checked against a narrow pattern before a run starts: no secret fits, and every line has them.
_PLAIN: Final = frozenset(
    {"timestamp", "level", "logger", "trace_id", "tenant_id", "run_id", "pipeline", "module_id", "step"}
)


# Their errors tell of an outage, or were raised on purpose. Any other one is a bug, and keeps its traceback.
_HANDLED: Final = ("asyncpg", "redrive", "temporalio")
OUTAGE_INTERVAL: Final = 30.0


# Who logs errors that are handled, and the log event that tells of them: an activity is tried again, the pool connects
# again, and of a workflow whose worker was interrupted another worker continues.
_TELLERS: Final = {
    "temporalio.activity": "activity.failed",
    "asyncpg": "database.connection_failed",
    "asyncio": "task.abandoned",
}
# Of a workflow: an activity failed in the very moment in which the workflow was canceled, which counts.
_UNREAD: Final = "Future exception was never retrieved"
# What asyncpg leaves of a connection attempt that was canceled between the connection and the question for TLS.
_CANCELED_ATTEMPT: Final = "unexpected connection_lost() call"
# Ours that every run, command or page would repeat while the database is down.
_OUTAGE_EVENTS: Final = frozenset(
    {
        "dead_letter.not_written",
        "dead_letter.outcome_not_written",
        "run.row_not_written",
        "console.database_failed",
    }
)


class Outages(logging.Filter):
    """Let a failure that is handled through once for each cause and interval, without a traceback.

    It is tried again, so an outage of the database would fill the log with the same lines.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._told: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a line is printed."""
        if isinstance(record.msg, dict):
            return self._filter_own(record.msg)
        error = record.exc_info[1] if record.exc_info else None
        event = _teller(record)
        if event is None or error is None or not _is_handled(error):
            return True
        if str(error) == _CANCELED_ATTEMPT:
            return False
        kind = str(getattr(record, "temporal_activity", {}).get("activity_type", event))
        # `step.failed` and `step.exhausted` tell of a step.
        count = self._count(event, f"{kind} {type(error).__name__}") if kind != Activity.RUN_STEP else None
        if count is None:
            return False
        record.msg, record.args, record.exc_info, record.exc_text = event, (), None, None
        record.operation, record.error_type, record.error = kind, type(error).__name__, str(error)
        record.count = count
        return True

    def _filter_own(self, line: dict[str, Any]) -> bool:
        """Tell whether one of our own lines is printed."""
        if line.get("event") not in _OUTAGE_EVENTS:
            return True
        count = self._count(str(line["event"]), str(line.get("error_type")))
        line["count"] = count
        return count is not None

    def _count(self, kind: str, cause: str) -> int | None:
        """Return how often it happened since its last line; None if that was just now."""
        told_at, suppressed = self._told.get((kind, cause), (-OUTAGE_INTERVAL, 0))
        now = self._clock()
        if now - told_at < OUTAGE_INTERVAL:
            self._told[kind, cause] = (told_at, suppressed + 1)
            return None
        self._told[kind, cause] = (now, 0)
        return suppressed + 1


def _teller(record: logging.LogRecord) -> str | None:
    """Return the log event for a failure that is handled; None if the record tells of something else."""
    if str(record.msg).startswith(_UNREAD):
        return _TELLERS["asyncio"]
    return _TELLERS.get(record.name) or _TELLERS.get(record.name.partition(".")[0])


def _is_handled(error: BaseException) -> bool:
    # An activity is canceled when its time is up, or its worker stops.
    return (
        isinstance(error, OSError | TimeoutError | asyncio.CancelledError)
        or type(error).__module__.split(".")[0] in _HANDLED
    )


def set_up(handler: logging.Handler, level: Level, fmt: Format, redactor: Redactor | None) -> None:
    """Let this handler print all log lines of this process."""
    pretty = fmt == "pretty" or (fmt == "auto" and sys.stderr.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        *([_add_trace_id] if is_on() else []),
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    _configure_structlog(shared)
    _configure_stdlib(handler, level, shared, _rendering(pretty, redactor or Redactor()))


def _configure_structlog(shared: list[Processor]) -> None:
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _configure_stdlib(
    handler: logging.Handler, level: Level, shared: list[Processor], rendering: list[Processor]
) -> None:
    handler.addFilter(Outages())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder(allow=_EXTRAS)],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name, quietest in _CHATTY.items():
        logging.getLogger(name).setLevel(max(quietest, root.level))


def _add_trace_id(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    found = trace_id()
    return event if found is None else {**event, "trace_id": found}


def _rendering(pretty: bool, redactor: Redactor) -> list[Processor]:
    def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        plain = {name: event[name] for name in event if name in _PLAIN}
        told = {name: _cut(event[name], redactor) for name in event if name not in _PLAIN}
        redacted: EventDict = redactor.value(told)
        return {**redacted, **plain}

    if not pretty:
        return [redact, structlog.processors.JSONRenderer()]
    # Its own exception formatter would print local variables, including secrets.
    console = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    return [redact, _say_once, _escape_control, console]


def _say_once(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    return said_once(event)


def _cut(value: Any, redactor: Redactor) -> Any:
    """Return the beginning of a long text: a foreign logger may log a whole payload."""
    if not isinstance(value, str) or len(value) <= _LONGEST:
        return value
    return f"{redactor.beginning(value, _LONGEST)}… ({len(value)} characters)"


def _escape_control(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    return {key: value.translate(_CONTROL) if isinstance(value, str) else value for key, value in event.items()}
