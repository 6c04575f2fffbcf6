"""Log events: one JSON object a line on stderr, or coloured text in a terminal. Nothing is printed unredacted.

Log events are named `step.failed`, facts are keys, and a fact has the same key everywhere: FIELDS lists them. Lasting
facts are bound once, with `structlog.contextvars` or `log.bind`, so that one id finds all lines of a run. The standard
library's loggers (temporalio, asyncio, httpx) are printed in the same form.

How lines are printed is in `log_lines.py`. It is imported, and structlog with it, at the first line: most commands
print none.
"""

import functools
import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

if TYPE_CHECKING:
    import structlog

    from redrive.redaction.redactor import Redactor

Log: TypeAlias = "structlog.stdlib.BoundLogger"
Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "json", "pretty"]

FIELDS: Final = {
    "event": "what happened, as noun.verb",
    "timestamp": "when, UTC, ISO 8601",
    "level": "debug, info, warning or error",
    "logger": "the Python module that speaks",
    "exception": "the traceback",
    "request_id": "id of the call that began it; sent on as x-request-id",
    "trace_id": "id of the trace that it belongs to",
    "correlation_id": "id that the caller gave to all that belongs together",
    "tenant_id": "the organisation that owns the run",
    "user_id": "the person that it is done for",
    "run_id": "the run, which is the Temporal workflow id",
    "pipeline": "the run's pipeline",
    "module_id": "the module that a step runs",
    "step": "the step of the run",
    "cycle": "which replay of the step; 1 is the start",
    "attempt": "which try; 1 is the first",
    "max_attempts": "how many tries there are",
    "operation": "name of the outbound call or command",
    "idempotency_key": "the key that makes it safe to try again",
    "method": "HTTP method",
    "url": "address without query and user",
    "http_status": "status of the answer",
    "latency_ms": "how long it took",
    "delay_ms": "how long until the next try",
    "retryable": "whether another try is worth it",
    "category": "kind of failure",
    "error_type": "class of the error",
    "error": "message of the error",
    "event_id": "the message that came in",
    "event_type": "its type",
    "source": "where it came from",
    "count": "how often it happened since the last such line",
    "dlq_id": "the dead letter",
    "bulk_id": "the bulk operation",
    "model": "the language model that answered",
    "input_tokens": "tokens that it read",
    "output_tokens": "tokens that it wrote",
}
"""Every field a log line may have, with its meaning: the source of the table in the documentation."""


class _Logger:
    """The logger of a module, made at its first line."""

    def __init__(self, name: str) -> None:
        self._name = name

    @functools.cached_property
    def _log(self) -> Log:
        import structlog  # noqa: PLC0415

        _FirstLine.arrived()
        log: Log = structlog.stdlib.get_logger(self._name)
        return log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class _Stderr(logging.StreamHandler[Any]):
    """Write to the current stderr: a live table replaces it to keep lines out of its way."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


class _FirstLine(logging.Handler):
    """Has logging configured when a line arrives, and hands it on."""

    def __init__(self, level: Level, fmt: Format) -> None:
        super().__init__()
        self._how = level, fmt

    @staticmethod
    def arrived() -> None:
        """Configure logging, if it was put off until now."""
        for handler in logging.getLogger().handlers:
            if isinstance(handler, _FirstLine):
                configure_logging(*handler._how)

    def emit(self, record: logging.LogRecord) -> None:
        self.arrived()
        logger = logging.getLogger(record.name)
        # By now, a library that says too much may have another level.
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)


def get_logger(name: str) -> Log:
    """Return the logger of a module. It follows configure_logging whenever that is called."""
    return cast("Log", _Logger(name))


def configure_logging(level: Level = "info", fmt: Format = "auto", redactor: "Redactor | None" = None) -> None:
    """Send all log lines of this process to stderr. Call it once, in an entry point."""
    from redrive.log_lines import set_up  # noqa: PLC0415

    _remove_handlers()
    set_up(_Stderr(), level, fmt, redactor)


def configure_logging_late(level: Level, fmt: Format = "auto") -> None:
    """Configure logging at the first line, if one is logged at all."""
    _remove_handlers()
    root = logging.getLogger()
    root.addHandler(_FirstLine(level, fmt))
    root.setLevel(level.upper())


def _remove_handlers() -> None:
    root = logging.getLogger()
    root.handlers = [other for other in root.handlers if not isinstance(other, _Stderr | _FirstLine)]


def said_once(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line for people: without what another of its fields says, or what has no value."""
    run_id = event.get("run_id")
    said = {"request_id": "correlation_id", "correlation_id": "run_id", "module_id": "step"}
    return {
        name: value
        for name, value in event.items()
        if value is not None
        and (name not in said or value not in (event.get(said[name]), run_id))
        and not (name in ("idempotency_key", "dlq_id") and run_id and str(run_id) in str(value))
    }
