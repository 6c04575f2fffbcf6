"""What an error means for the next attempt: its category, and whether another attempt can help.

Decides by type, status code and SQLSTATE, never by a message's wording where a code exists. Does no I/O; the only clock
read is for a `Retry-After` date in an answer without a `Date` of its own.

The first of these that matches an error decides:

    StepError                     the category it carries; Transient and Terminal overrule every policy
    InvalidInput, Unavailable ... validation, too_large, network
    an attribute `sqlstate`       SQLSTATES below, longest prefix first
    httpx.HTTPStatusError         category_of_status
    httpx, pydantic, built-ins    CATEGORIES_BY_TYPE below
    its `__cause__`, 8 deep       so that a wrapped timeout is still a timeout
    anything else                 unknown: the policy decides

A plain ValueError is unknown: modules raise it for anything, so only pydantic.ValidationError is `validation`.

Fingerprints group similar failures: what differs from case to case is removed.
"""

import asyncio
import errno
import hashlib
import json
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

import httpx
import pydantic
from pydantic_core import PydanticSerializationError

from redrive.categories import Category
from redrive.contracts import ERROR_TEXT_LIMIT, FailedCycle
from redrive.errors import InvalidInput, StepError, Terminal, TooLarge, Transient, Unavailable
from redrive.policy import RetryPolicy

LONGEST_RETRY_AFTER: Final = timedelta(days=365)
CAUSES_FOLLOWED: Final = 8
GROUP_MEMBERS_SEEN: Final = 100
# PostgreSQL, appendix A. A rolled back transaction (40) and a database out of resources (53) are the database's
# fault, not the caller's, as a 503 is: provider_5xx. `conflict` would be wrong, because a retry helps.
SQLSTATES: Final = {
    "08": Category.NETWORK,  # connection exception
    "22": Category.VALIDATION,  # data exception
    "23": Category.INTEGRITY,  # constraint violation
    "25P03": Category.TIMEOUT,  # idle in transaction
    "25P04": Category.TIMEOUT,  # transaction timeout
    "28": Category.MISSING_CONFIG,  # wrong user or password
    "3D": Category.MISSING_CONFIG,  # no such database
    "3F": Category.MISSING_CONFIG,  # no such schema
    "40": Category.PROVIDER_5XX,  # serialization failure, deadlock
    "40002": Category.INTEGRITY,  # deferred constraint
    "42": Category.MISSING_CONFIG,  # no such table, no permission, wrong SQL: a migration or a grant is missing
    "53": Category.PROVIDER_5XX,  # out of connections, memory or disk
    "54": Category.TOO_LARGE,  # program limit exceeded
    "55P03": Category.TIMEOUT,  # lock not available
    "57014": Category.TIMEOUT,  # statement timeout
    "57P": Category.NETWORK,  # shutting down, crashed, starting up
    "57P04": Category.MISSING_CONFIG,  # database dropped
    "58": Category.PROVIDER_5XX,  # I/O error of the server
}
# The first match counts, so a subclass comes before its base.
CATEGORIES_BY_TYPE: Final[tuple[tuple[type[BaseException], Category], ...]] = (
    (TooLarge, Category.TOO_LARGE),
    (InvalidInput, Category.VALIDATION),
    (Unavailable, Category.NETWORK),
    (asyncio.TimeoutError, Category.TIMEOUT),
    (httpx.TimeoutException, Category.TIMEOUT),
    (httpx.UnsupportedProtocol, Category.MISSING_CONFIG),
    (httpx.InvalidURL, Category.MISSING_CONFIG),
    (httpx.LocalProtocolError, Category.VALIDATION),
    (httpx.TransportError, Category.NETWORK),
    (httpx.TooManyRedirects, Category.PROVIDER_4XX),
    (httpx.DecodingError, Category.SERIALIZATION),
    (ConnectionError, Category.NETWORK),
    (socket.gaierror, Category.NETWORK),
    (pydantic.ValidationError, Category.VALIDATION),
    (PydanticSerializationError, Category.SERIALIZATION),
    (json.JSONDecodeError, Category.SERIALIZATION),
    (UnicodeError, Category.SERIALIZATION),
)
# Those that Python does not map to a ConnectionError or TimeoutError of its own.
NETWORK_ERRNOS: Final = frozenset(
    {
        errno.EADDRNOTAVAIL,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.ENOBUFS,
        errno.ENOTCONN,
    }
)
SHAPE_LIMIT: Final = 300
# Each part is linear or bounded: a long text of quotes or dashes costs no more than any other.
_VARIABLE: Final = re.compile(
    r"""
    (?<![\w])'[^\n]{0,200}?'(?!\w) | "[^"\n]*+"              # quoted values; not the apostrophe in "can't"
    | (?<![\w-])(?=[a-z_-]*+[0-9])[\w-]{16,}+                 # ids: UUIDs, run ids, digests, tokens
    | \b0x[0-9a-f]++                                          # addresses
    | [0-9]++(?:[.,:][0-9]++)*+                               # numbers, times
    """,
    re.VERBOSE | re.IGNORECASE,
)


@dataclass(frozen=True)
class Classification:
    """What an error means for the next attempt."""

    category: Category
    retryable: bool
    retry_after: timedelta | None = None
    http_status: int | None = None


def classify(error: BaseException, policy: RetryPolicy) -> Classification:
    """Return an error's category and whether, under this policy, it is worth another attempt.

    The most hopeless member of a group of errors decides.
    """
    all_found = [_classification(member, policy) for member in _members(error)]
    return next((found for found in all_found if not found.retryable), all_found[0])


def category_of(error: BaseException) -> Category:
    """Return the category of an error by itself, without its causes."""
    if isinstance(error, StepError):
        return error.category
    if isinstance(sqlstate := getattr(error, "sqlstate", None), str):
        return category_of_sqlstate(sqlstate)
    if isinstance(error, httpx.HTTPStatusError):
        return category_of_status(error.response.status_code)
    for kind, category in CATEGORIES_BY_TYPE:
        if isinstance(error, kind):
            return category
    if (isinstance(error, OSError) and error.errno in NETWORK_ERRNOS) or _is_closed_connection(error):
        return Category.NETWORK
    return Category.UNKNOWN


def category_of_status(status: int) -> Category:
    """Return the category of an HTTP status that is not a success. A redirect that was not followed is a 4xx."""
    match status:
        case 408:
            return Category.TIMEOUT
        case 425 | 429:
            return Category.RATE_LIMIT
        case 409:
            return Category.CONFLICT
        case _ if status >= 500:
            # All of them, not only 500, 502, 503 and 504: proxies answer 520 to 529 for the same transient problems.
            return Category.PROVIDER_5XX
        case _:
            return Category.PROVIDER_4XX


def category_of_sqlstate(sqlstate: str) -> Category:
    """Return the category of a SQLSTATE: the whole code takes precedence over its class."""
    for length in (5, 3, 2):
        if category := SQLSTATES.get(sqlstate[:length]):
            return category
    return Category.UNKNOWN


def retry_after_of(headers: Mapping[str, str]) -> timedelta | None:
    """Return how long an answer asks to wait. Its own `Date` is the clock, so that clock skew is harmless."""
    value = headers.get("retry-after")
    if value is None:
        return None
    return parse_retry_after(value, parse_date(headers.get("date", "")) or datetime.now(UTC))


def parse_retry_after(value: str, now: datetime) -> timedelta | None:
    """Read a `Retry-After` value, seconds or HTTP date; None if it is neither, and never below zero."""
    text = value.strip()
    if re.fullmatch(r"[0-9]+(?:\.[0-9]*)?", text):
        return timedelta(seconds=min(float(text), LONGEST_RETRY_AFTER.total_seconds()))
    date = parse_date(text)
    return None if date is None else min(max(date - now, timedelta(0)), LONGEST_RETRY_AFTER)


def parse_date(text: str) -> datetime | None:
    """Read an HTTP date; None if it is none."""
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def _classification(error: BaseException, policy: RetryPolicy) -> Classification:
    known = next((link for link in _causes(error) if category_of(link) is not Category.UNKNOWN), error)
    category = category_of(known)
    return Classification(category, _is_retryable(error, category, policy), _retry_after(known), _status(known))


def _is_retryable(error: BaseException, category: Category, policy: RetryPolicy) -> bool:
    if isinstance(error, Transient | Terminal):
        return isinstance(error, Transient)
    names = set(_names(error))
    if names.intersection(policy.terminal):
        return False
    return bool(names.intersection(policy.transient)) or policy.retries(category)


def _names(error: BaseException) -> Iterator[str]:
    for kind in type(error).__mro__:
        yield kind.__name__
        yield kind.__qualname__
        yield f"{kind.__module__}.{kind.__qualname__}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(CAUSES_FOLLOWED):
        if link is None:
            return
        yield link
        link = link.__cause__


def _members(error: BaseException) -> list[BaseException]:
    members: list[BaseException] = []
    waiting = [error]
    while waiting and len(members) < GROUP_MEMBERS_SEEN:
        first = waiting.pop()
        if isinstance(first, BaseExceptionGroup):
            waiting.extend(reversed(first.exceptions))
        else:
            members.append(first)
    return members


def _retry_after(error: BaseException) -> timedelta | None:
    if isinstance(error, httpx.HTTPStatusError):
        return retry_after_of(error.response.headers)
    return error.retry_after if isinstance(error, StepError) else None


def _status(error: BaseException) -> int | None:
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code
    status = getattr(error, "status", None) if isinstance(error, StepError) else None
    return status if isinstance(status, int) else None


def _is_closed_connection(error: BaseException) -> bool:
    # asyncpg and psycopg give their own misuse errors no SQLSTATE, and this one is not misuse.
    return "InterfaceError" in _names(error) and "connection is closed" in str(error)


def fingerprint(pipeline: str, cycle: FailedCycle) -> str:
    """Return the same short text for failures with the same cause."""
    # Cut after the values are removed: a longer id must not move the end.
    shape = " ".join(_VARIABLE.sub("?", cycle.message[:ERROR_TEXT_LIMIT]).split())[:SHAPE_LIMIT]
    text = "\n".join((pipeline, cycle.step, cycle.category, cycle.error_type, shape))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
