"""Log lines as they come out on stderr."""

import asyncio
import gc
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest
import structlog
from temporalio.exceptions import ApplicationError

from redrive.log_lines import OUTAGE_INTERVAL, Outages
from redrive.logs import FIELDS, Format, Level, configure_logging, get_logger
from redrive.redaction.redactor import MARK, Redactor

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Leave logging as it was for the tests after."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    quiet = {name: logging.getLogger(name).level for name in ("httpx", "httpcore", "asyncio")}
    yield
    root.handlers, level = before
    root.setLevel(level)
    for name, was in quiet.items():
        logging.getLogger(name).setLevel(was)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Lines:
    """What was logged since the last call, as JSON."""
    configure_logging("info", "json")
    return lambda: [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_line_is_json_with_event_and_facts(lines: Lines) -> None:
    """An event comes out as one object with time, level, logger and its facts."""
    get_logger("redrive.test").info("step.failed", run_id="run-1", attempt=2)
    [line] = lines()
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "step.failed", "level": "info", "logger": "redrive.test", "run_id": "run-1", "attempt": 2}
    assert line.keys() <= FIELDS.keys()


def test_facts_bound_once_are_on_every_line(lines: Lines) -> None:
    """Context variables reach our own lines and those of other libraries."""
    with structlog.contextvars.bound_contextvars(run_id="run-1", tenant_id="acme"):
        get_logger("a").info("step.started")
        logging.getLogger("temporalio.worker").warning("poll failed for %s", "queue")
    assert [(line["event"], line["run_id"], line["tenant_id"]) for line in lines()] == [
        ("step.started", "run-1", "acme"),
        ("poll failed for queue", "run-1", "acme"),
    ]


def test_secret_is_nowhere_in_a_line(lines: Lines) -> None:
    """Values, nested values, messages, tracebacks and other libraries' lines are all redacted."""
    log = get_logger("a")
    try:
        int("token=Zq1")
    except ValueError:
        log.exception("call.failed", password="Zq2", nested={"api_key": "Zq3"}, error=RuntimeError("Bearer Zq45"))
        logging.getLogger("other").exception("password=%s", "Zq6")
    logged = lines()
    assert "Zq" not in json.dumps(logged)
    assert logged[0]["password"] == MARK
    assert "token=" in logged[0]["exception"]
    assert "token=" in logged[1]["exception"]


def test_level_and_chatty_libraries_are_obeyed(lines: Lines) -> None:
    """Lines below the level are dropped, and httpx tells of no request."""
    get_logger("a").debug("step.heartbeat")
    logging.getLogger("httpx").info("HTTP Request")
    logging.getLogger("asyncio").debug("Using selector")
    logging.getLogger("temporalio").info("kept")
    assert [line["event"] for line in lines()] == ["kept"]


def test_extra_facts_of_temporal_are_kept_and_others_dropped(lines: Lines) -> None:
    """Temporal's own context comes along; an unknown extra may be a payload and does not."""
    extra = {"temporal_activity": {"attempt": 2}, "payload": "Zq"}
    logging.getLogger("temporalio").warning("slow", extra=extra)
    [line] = lines()
    assert line["temporal_activity"] == {"attempt": 2}
    assert "payload" not in line


def test_configuring_again_does_not_double_the_lines(lines: Lines) -> None:
    """A second call replaces the first."""
    configure_logging("warning", "json", Redactor(extra_keys=["iban"]))
    get_logger("a").info("step.started")
    get_logger("a").warning("step.failed", iban="DE00")
    assert [(line["event"], line["iban"]) for line in lines()] == [("step.failed", MARK)]


@pytest.mark.parametrize(("fmt", "is_json"), [("pretty", False), ("auto", True)])
def test_format_follows_the_setting(capsys: pytest.CaptureFixture[str], fmt: Format, is_json: bool) -> None:
    """Auto is JSON where stderr is no terminal; pretty is text with a traceback and no raw control characters."""
    level: Level = "debug"
    configure_logging(level, fmt)
    try:
        int("password=Zq1")
    except ValueError:
        get_logger("a").exception("call.failed", error="\x1b[2Jgone", cookie="Zq2")
    out = capsys.readouterr().err
    assert (out[0] == "{") is is_json
    assert "ValueError: invalid" in out
    assert "Zq" not in out
    assert "\x1b[2J" not in out


def test_a_line_for_people_names_a_run_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Ids that repeat the run's, and fields without a value, are in the JSON lines alone."""
    configure_logging("info", "pretty")
    same = {"correlation_id": "run-1", "request_id": "run-1", "idempotency_key": "run-1:charge:run", "user_id": None}
    get_logger("a").info("step.succeeded", run_id="run-1", step="charge", module_id="charge", **same)
    line = capsys.readouterr().err
    assert line.count("run-1") == 1
    assert line.count("charge") == 1
    assert "user_id" not in line
    get_logger("a").info("step.succeeded", run_id="run-1", correlation_id="order-7", request_id="order-7")
    line = capsys.readouterr().err
    assert (line.count("run-1"), line.count("order-7")) == (1, 1)


def _failure(error: BaseException, name: str = "temporalio.activity") -> logging.LogRecord:
    record = logging.LogRecord(name, logging.WARNING, "", 0, "Completing activity as failed", (), None)
    record.exc_info = (type(error), error, None)
    record.temporal_activity = {"activity_type": "record_command"}
    return record


def test_outage_is_one_line_for_each_cause_and_interval() -> None:
    """The next line says how many there were; another cause has its own."""
    now = [0.0]
    outages = Outages(lambda: now[0])
    refused = [_failure(ConnectionRefusedError("no database")) for _ in range(5)]
    assert [outages.filter(record) for record in refused] == [True, False, False, False, False]
    assert (refused[0].getMessage(), refused[0].exc_info) == ("activity.failed", None)
    assert outages.filter(_failure(TimeoutError()))
    canceled = _failure(asyncio.CancelledError())
    assert (outages.filter(canceled), canceled.exc_info) == (True, None)
    now[0] += OUTAGE_INTERVAL
    later = _failure(ConnectionRefusedError("no database"))
    assert outages.filter(later)
    assert vars(later)["count"] == 5


def test_outage_that_libraries_tell_of_is_one_line_without_a_traceback() -> None:
    """The pool that cannot connect, and a workflow's failure that nobody reads any more."""
    outages = Outages()
    for logger, event in (("asyncpg.pool", "database.connection_failed"), ("asyncio", "task.abandoned")):
        first, second = (_failure(ConnectionRefusedError(), logger) for _ in range(2))
        assert (outages.filter(first), outages.filter(second)) == (True, False)
        assert (first.getMessage(), first.exc_info) == (event, None)


def test_failure_that_a_canceled_workflow_did_not_read_is_one_line_without_a_traceback() -> None:
    """The cancellation counts. A workflow that fails otherwise keeps its traceback, as does an exception of its own."""
    outages, logger = Outages(), "temporalio.worker._workflow_instance"
    unread, failed, own = (
        _failure(error, logger) for error in (ApplicationError("422"), ApplicationError("422"), KeyError())
    )
    unread.msg = own.msg = "Future exception was never retrieved\nfuture: <Future finished>"
    assert [outages.filter(record) for record in (unread, failed, own)] == [True, True, True]
    assert (unread.getMessage(), unread.exc_info) == ("task.abandoned", None)
    assert failed.exc_info
    assert own.exc_info


async def test_canceled_connection_attempt_is_no_line(caplog: pytest.LogCaptureFixture) -> None:
    """asyncpg leaves an error that nobody reads, if it is canceled before PostgreSQL was asked for TLS."""

    async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for turns in range(1, 9):
            attempt = asyncio.ensure_future(asyncpg.connect(host="127.0.0.1", port=port, user="a", password="b"))
            for _ in range(turns):
                await asyncio.sleep(0)
            attempt.cancel()
            await asyncio.wait([attempt])
            attempt.cancelled() or attempt.exception()
        await asyncio.sleep(0)
        gc.collect()
    left = [record for record in caplog.records if "connection_lost" in str(record.exc_info)]
    assert left
    assert [record for record in left if Outages().filter(record)] == []


def test_outage_that_every_run_meets_is_one_line_with_a_count(lines: Lines) -> None:
    """A thousand reports that the database missed are one line in the interval."""
    for number in range(1000):
        get_logger("redrive.test").warning("run.row_not_written", run_id=f"run-{number}", error_type="OSError")
    (line,) = lines()
    assert (line["event"], line["count"]) == ("run.row_not_written", 1)


def test_bug_keeps_its_traceback() -> None:
    """What nobody raises on purpose is printed whenever it happens, as it is."""
    outages = Outages()
    for record in (_failure(KeyError("x")), _failure(KeyError("x")), _failure(OSError(), "redrive.worker")):
        assert outages.filter(record)
        assert record.exc_info


PUT_OFF = """
import logging, sys
from redrive.logs import configure_logging_late, get_logger
configure_logging_late("warning", "json")
log = get_logger("redrive.test")
before = "structlog" in sys.modules
if sys.argv[1] == "ours":
    log.info("step.started")
    log.warning("step.failed", step="pay")
else:
    logging.getLogger("asyncpg").info("quiet")
    logging.getLogger("asyncpg").warning("lost %s", "it")
logging.getLogger("other").warning("again")
print(before, "structlog" in sys.modules)
"""


@pytest.mark.parametrize(("whose", "first"), [("ours", "step.failed"), ("a library's", "lost it")])
def test_logging_is_set_up_at_the_first_line(whose: str, first: str) -> None:
    """A command that logs nothing does not wait for structlog; one that does prints every line, once and as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", PUT_OFF, whose], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["False", "True"]
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == [first, "again"]
