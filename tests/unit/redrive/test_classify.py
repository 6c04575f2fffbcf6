"""What each kind of error means for the next try."""

import asyncio
import errno
import json
import socket
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import asyncpg
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from redrive.categories import Category
from redrive.classify import (
    LONGEST_RETRY_AFTER,
    category_of_sqlstate,
    category_of_status,
    classify,
    parse_retry_after,
    retry_after_of,
)
from redrive.errors import InvalidInput, ServiceError, StepError, Terminal, TooLarge, Transient, Unavailable
from redrive.policy import EVENT, STEP

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
REQUEST = httpx.Request("GET", "http://service.test/")


class Sqlstate(Exception):
    """An error of any PostgreSQL driver."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


def status_error(status: int, **headers: str) -> httpx.HTTPStatusError:
    """The error of httpx's raise_for_status."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = httpx.Response(status, headers=named, request=REQUEST)
    return httpx.HTTPStatusError("any", request=REQUEST, response=response)


def validation_error() -> ValidationError:
    """A real error of pydantic."""
    try:
        TypeAdapter(int).validate_python("x")
    except ValidationError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (TimeoutError(), Category.TIMEOUT),
        (asyncio.TimeoutError(), Category.TIMEOUT),  # noqa: UP041 - the older name is what other libraries raise
        (httpx.ReadTimeout("slow"), Category.TIMEOUT),
        (httpx.PoolTimeout("busy"), Category.TIMEOUT),
        (OSError(errno.ETIMEDOUT, "timed out"), Category.TIMEOUT),
        (httpx.ConnectError("refused"), Category.NETWORK),
        (httpx.RemoteProtocolError("cut off"), Category.NETWORK),
        (httpx.UnsupportedProtocol("ftp"), Category.MISSING_CONFIG),
        (httpx.LocalProtocolError("bad header"), Category.VALIDATION),
        (ConnectionResetError(), Category.NETWORK),
        (BrokenPipeError(), Category.NETWORK),
        (OSError(errno.EHOSTUNREACH, "no route"), Category.NETWORK),
        (socket.gaierror(socket.EAI_AGAIN, "no name"), Category.NETWORK),
        (OSError(errno.ENOENT, "no file"), Category.UNKNOWN),
        (validation_error(), Category.VALIDATION),
        (InvalidInput("x"), Category.VALIDATION),
        (TooLarge("x"), Category.TOO_LARGE),
        (Unavailable("x"), Category.NETWORK),
        (PydanticSerializationError("x"), Category.SERIALIZATION),
        (json.JSONDecodeError("x", "", 0), Category.SERIALIZATION),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogate"), Category.SERIALIZATION),
        (asyncpg.UniqueViolationError("x"), Category.INTEGRITY),
        (asyncpg.ConnectionDoesNotExistError("x"), Category.NETWORK),
        (asyncpg.TooManyConnectionsError("x"), Category.PROVIDER_5XX),
        (asyncpg.InterfaceError("connection is closed"), Category.NETWORK),
        (asyncpg.InterfaceError("another operation is in progress"), Category.UNKNOWN),
        (ValueError("x"), Category.UNKNOWN),
        (KeyError("x"), Category.UNKNOWN),
        (RuntimeError("x"), Category.UNKNOWN),
    ],
    ids=lambda value: repr(value)[:50] if isinstance(value, BaseException) else "",
)
def test_error_has_its_category(error: Exception, category: Category) -> None:
    """Types and codes decide on the category, and the category on another try."""
    verdict = classify(error, STEP)
    assert (verdict.category, verdict.retryable) == (category, STEP.retries(category))


@pytest.mark.parametrize(
    ("statuses", "category", "retryable"),
    [
        ([408], Category.TIMEOUT, True),
        ([425, 429], Category.RATE_LIMIT, True),
        ([500, 501, 502, 503, 504, 505, 520, 529, 599], Category.PROVIDER_5XX, True),
        ([400, 401, 403, 404, 405, 410, 413, 422, 451], Category.PROVIDER_4XX, False),
        ([300, 301, 302, 304, 307, 308], Category.PROVIDER_4XX, False),
        ([409], Category.CONFLICT, False),
    ],
    ids=str,
)
def test_status_has_its_category(statuses: list[int], category: Category, retryable: bool) -> None:
    """408, 425, 429 and every 5xx are tried again, the other statuses are not."""
    for status in statuses:
        verdict = classify(status_error(status), EVENT)
        assert category_of_status(status) is category
        assert (verdict.category, verdict.retryable, verdict.http_status) == (category, retryable, status)


@pytest.mark.parametrize(
    ("sqlstate", "category"),
    [
        ("08006", Category.NETWORK),
        ("57P01", Category.NETWORK),
        ("57P04", Category.MISSING_CONFIG),
        ("57014", Category.TIMEOUT),
        ("55P03", Category.TIMEOUT),
        ("55006", Category.UNKNOWN),
        ("53300", Category.PROVIDER_5XX),
        ("40001", Category.PROVIDER_5XX),
        ("40P01", Category.PROVIDER_5XX),
        ("40002", Category.INTEGRITY),
        ("23505", Category.INTEGRITY),
        ("22P02", Category.VALIDATION),
        ("42P01", Category.MISSING_CONFIG),
        ("3D000", Category.MISSING_CONFIG),
        ("28P01", Category.MISSING_CONFIG),
        ("54000", Category.TOO_LARGE),
        ("XX000", Category.UNKNOWN),
        ("", Category.UNKNOWN),
    ],
)
def test_sqlstate_has_its_category(sqlstate: str, category: Category) -> None:
    """The whole code counts more than its class, whichever driver raised it."""
    assert category_of_sqlstate(sqlstate) is category
    assert classify(Sqlstate(sqlstate), STEP).category is category


def test_module_decides_by_transient_and_terminal() -> None:
    """Transient is tried again and Terminal is not, whatever category or list says."""
    policy = STEP.model_copy(update={"terminal": ("Transient",), "transient": ("Terminal",)})
    asked = timedelta(seconds=7)
    transient = classify(Transient("later", category=Category.CONFLICT, retry_after=asked), policy)
    assert (transient.category, transient.retryable, transient.retry_after) == (Category.CONFLICT, True, asked)
    assert not classify(Terminal("never", category=Category.TIMEOUT), policy).retryable


def test_service_error_goes_by_its_category() -> None:
    """A ServiceError carries category, status and Retry-After into the verdict."""
    error = ServiceError("x", category=Category.RATE_LIMIT, status=429, retry_after=timedelta(seconds=3))
    verdict = classify(error, STEP)
    assert (verdict.category, verdict.retryable, verdict.http_status) == (Category.RATE_LIMIT, True, 429)
    assert verdict.retry_after == timedelta(seconds=3)
    assert not classify(StepError("x", category=Category.CONFLICT), EVENT).retryable


@pytest.mark.parametrize("name", ["Sqlstate", f"{__name__}.Sqlstate", "Exception"])
def test_policy_names_types_bare_qualified_or_by_base(name: str) -> None:
    """A name in a policy's list matches the error's class or any base of it."""
    error = Sqlstate("23505")
    assert classify(error, STEP.model_copy(update={"transient": (name,)})).retryable
    assert not classify(Sqlstate("08006"), STEP.model_copy(update={"terminal": (name,)})).retryable
    both = STEP.model_copy(update={"transient": (name,), "terminal": (name,)})
    assert not classify(error, both).retryable


def test_unknown_error_goes_by_the_policy() -> None:
    """An error that no rule knows is tried again only where the policy says so."""
    assert classify(RuntimeError("?"), EVENT).retryable
    assert not classify(RuntimeError("?"), STEP).retryable


def test_cause_tells_what_a_wrapped_error_was() -> None:
    """An unknown error is classified by its cause, with the status of the cause."""
    outer = RuntimeError("could not charge")
    outer.__cause__ = LookupError("inner")
    outer.__cause__.__cause__ = status_error(503, retry_after="4")
    verdict = classify(outer, STEP)
    assert (verdict.category, verdict.retryable, verdict.http_status) == (Category.PROVIDER_5XX, True, 503)
    assert verdict.retry_after == timedelta(seconds=4)


def test_circle_of_causes_ends() -> None:
    """Errors that are each other's cause are still classified."""
    one, other = RuntimeError("one"), RuntimeError("other")
    one.__cause__, other.__cause__ = other, one
    assert classify(one, STEP).category is Category.UNKNOWN


def test_group_is_as_hopeless_as_its_worst_member() -> None:
    """A group is tried again only if each of its members is, however deep they are."""
    hopeful = ExceptionGroup("a", [TimeoutError(), ExceptionGroup("b", [ConnectionResetError()])])
    hopeless = ExceptionGroup("a", [TimeoutError(), ExceptionGroup("b", [validation_error()])])
    assert classify(hopeful, STEP).category is Category.TIMEOUT
    assert classify(hopeful, STEP).retryable
    assert classify(hopeless, STEP).category is Category.VALIDATION
    assert not classify(hopeless, STEP).retryable


@given(st.integers(0, 10**7))
def test_retry_after_reads_seconds(seconds: int) -> None:
    """Plain seconds are that many seconds."""
    assert parse_retry_after(str(seconds), NOW) == timedelta(seconds=seconds)


@given(st.integers(-(10**6), 10**6))
def test_retry_after_reads_dates(seconds: int) -> None:
    """A date is the time until then, and nothing if it has passed."""
    date = format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)
    assert parse_retry_after(date, NOW) == timedelta(seconds=max(0, seconds))


@given(st.one_of(st.text(), st.from_regex(r"\A[A-Z][a-z]{2}, \d+ [A-Z][a-z]{2} \d+ \d+:\d+:\d+ [-+A-Z0-9]+\Z")))
def test_retry_after_takes_any_text(value: str) -> None:
    """Garbage gives None or a sane duration, never an error."""
    wait = parse_retry_after(value, NOW)
    assert wait is None or timedelta(0) <= wait <= LONGEST_RETRY_AFTER


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("9" * 5000, LONGEST_RETRY_AFTER),
        (" 5 ", timedelta(seconds=5)),
        ("1.5", timedelta(seconds=1.5)),
        ("Sun Mar  1 12:00:09 2026", timedelta(seconds=9)),
        ("Fri, 31 Dec 9999 23:59:59 GMT", LONGEST_RETRY_AFTER),
        ("-5", None),
        ("soon", None),
        ("", None),
        ("٣", None),
    ],
    ids=lambda value: str(value)[:30],
)
def test_retry_after_at_its_edges(value: str, expected: timedelta | None) -> None:
    """Huge, odd, old-fashioned and wrong values each have their meaning."""
    assert parse_retry_after(value, NOW) == expected


def test_retry_after_goes_by_the_clock_of_the_service() -> None:
    """A date is compared with the answer's own Date, so that skewed clocks do not matter."""
    date, later = (format_datetime(NOW + timedelta(seconds=s), usegmt=True) for s in (0, 30))
    assert retry_after_of(httpx.Headers({"date": date, "retry-after": later})) == timedelta(seconds=30)
    assert retry_after_of({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}) == timedelta(0)
    assert retry_after_of({}) is None


def test_model_error_inside_a_module_is_validation() -> None:
    """A module that validates what it was given fails for good."""

    class Order(BaseModel):
        price: int

    with pytest.raises(ValidationError) as caught:
        Order.model_validate({"price": "many"})
    assert not classify(caught.value, EVENT).retryable
