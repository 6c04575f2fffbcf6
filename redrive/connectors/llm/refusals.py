"""What an error of a language model's API means: by its code, its status and its rate limit headers."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from redrive.categories import Category
from redrive.classify import category_of_status, retry_after_of
from redrive.connectors.llm.answers import AnswerRefused, Api, ContextTooLong, Texts
from redrive.errors import ServiceError
from redrive.http import Refusal

FILTERED: Final = frozenset({"content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation"})
TOO_LONG: Final = frozenset({"context_length_exceeded", "string_above_max_length", "request_too_large"})
# Anthropic, vLLM, llama.cpp and others have no code for it.
TOO_LONG_TEXT: Final = re.compile(
    r"prompt is too long|(maximum|exceeds?\b.*) context|context (length|window|size)", re.I
)
# What no waiting changes, whatever the status: OpenAI answers 429 to an account without credit.
TERMINAL_CODES: Final = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "billing_error"}
)
# For errors inside a stream, which have no status.
CATEGORIES: Final = {
    "rate_limit_exceeded": Category.RATE_LIMIT,
    "rate_limit_error": Category.RATE_LIMIT,
    "timeout_error": Category.TIMEOUT,
    "authentication_error": Category.PROVIDER_4XX,
    "permission_error": Category.PROVIDER_4XX,
    "not_found_error": Category.PROVIDER_4XX,
    "invalid_request_error": Category.PROVIDER_4XX,
    **dict.fromkeys(TERMINAL_CODES, Category.PROVIDER_4XX),
}
# Most often the address lacks its /v1.
_NOT_FOUND: Final = "look at the service's base_url and at the name of the model"
_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


@dataclass(frozen=True)
class Problem:
    """An error object of either API."""

    type: str = ""
    code: str = ""
    param: str = ""
    message: str = ""

    @classmethod
    def read(cls, body: Any) -> "Problem | None":
        """Read `{"error": {...}}`; OpenAI-compatible endpoints also send `{"error": "text"}` and a plain `message`."""
        found = body.get("error") or body if isinstance(body, dict) else body
        if isinstance(found, str):
            return cls(message=found)
        if not isinstance(found, dict):
            return None
        return cls(*(_text(found.get(name)) for name in ("type", "code", "param", "message")))

    @property
    def codes(self) -> set[str]:
        """Its names: either API may have the one that matters in `type` or in `code`."""
        return {self.type, self.code} - {""}

    @property
    def is_too_long(self) -> bool:
        return bool(self.codes & TOO_LONG) or TOO_LONG_TEXT.search(self.message) is not None

    def text(self, texts: Texts, excerpt: Callable[[bytes], str]) -> str:
        """Return what may be recorded: its codes, and with `redacted` its text, which may repeat the prompt."""
        shown = ", ".join(dict.fromkeys(part for part in (self.type, self.code, self.param) if part))
        return excerpt(f"{shown}: {self.message}".encode()) if texts == "redacted" else excerpt(shown.encode())


def refusal_error(refusal: Refusal, api: Api, texts: Texts, excerpt: Callable[[bytes], str]) -> ServiceError:
    """Return the error of an answer with an error status."""
    problem = Problem.read(refusal.json()) or Problem()
    told = [problem.text(texts, excerpt), _NOT_FOUND if refusal.status == 404 else ""]
    error = refusal.error("; ".join(filter(None, told)), _category(refusal.status, problem))
    if problem.codes & FILTERED:
        return AnswerRefused(str(error), status=refusal.status)
    if refusal.status in {400, 413, 422} and problem.is_too_long:
        return ContextTooLong(str(error), status=refusal.status)
    if error.category is Category.RATE_LIMIT:
        error.retry_after = _retry_after(refusal, api)
    return error


def event_error(call: str, body: Any, texts: Texts, excerpt: Callable[[bytes], str]) -> ServiceError:
    """Return the error of an error object that came with a successful status: in a stream, or from a proxy."""
    problem = Problem.read(body) or Problem()
    text = f"{call} answered with an error: {problem.text(texts, excerpt)}"
    if problem.codes & FILTERED:
        return AnswerRefused(text)
    if problem.is_too_long:
        return ContextTooLong(text)
    # Most of these are an overloaded provider: the stream had begun, so the request itself was accepted.
    category = next((CATEGORIES[code] for code in problem.codes if code in CATEGORIES), Category.PROVIDER_5XX)
    return ServiceError(text, category=category)


def _category(status: int, problem: Problem) -> Category:
    if problem.codes & TERMINAL_CODES:
        return Category.PROVIDER_4XX
    if status == 409:
        # A lock that was not given in time. Nothing is created here that could be there already.
        return Category.PROVIDER_5XX
    return category_of_status(status)


def _retry_after(refusal: Refusal, api: Api) -> timedelta | None:
    milliseconds = refusal.headers.get("retry-after-ms", "")
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]*)?", milliseconds):
        return timedelta(milliseconds=float(milliseconds))
    told = retry_after_of(refusal.headers)
    if told is not None:
        return told
    seconds = api.retry_after(refusal)
    return None if seconds is None else timedelta(seconds=min(max(seconds, 0.0), 365 * 86400.0))


def latest_reset(limits: Mapping[str, tuple[str | None, float | None]]) -> float | None:
    """Return when the limits that are used up are reset; of all, if none says so. Each is (remaining, seconds)."""
    known = [(remaining, seconds) for remaining, seconds in limits.values() if seconds is not None]
    used_up = [seconds for remaining, seconds in known if remaining == "0"]
    return max(used_up or [seconds for _, seconds in known], default=None)


def duration(text: str | None) -> float | None:
    """Read a duration such as `6m0s`, `1h2m`, `120ms` or `59.7` (seconds)."""
    text = (text or "").strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]*)?", text):
        return float(text)
    if not re.fullmatch(r"([0-9]{1,9}(\.[0-9]*)?(ms|[hms]))+", text):
        return None
    return sum(float(number) * _UNITS[unit] for number, _, unit in re.findall(r"([0-9]+(\.[0-9]*)?)(ms|[hms])", text))


def until(moment: str | None, now: datetime) -> float | None:
    """Return the seconds until an RFC 3339 time."""
    try:
        return (datetime.fromisoformat(moment or "") - now).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None


def _text(value: Any) -> str:
    return value[:2000] if isinstance(value, str) else ""
