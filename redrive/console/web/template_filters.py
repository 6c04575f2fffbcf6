"""Filters that format values on a page: times, durations, counts, ids, JSON. Pure."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from markupsafe import Markup, escape
from pydantic_core import to_json

from redrive.categories import Category
from redrive.levels import levels
from redrive.redaction.redactor import MARK

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_SHOWN_ID: Final = 8
# Deep nesting makes indented JSON many times as long.
_INDENTED: Final = 512 * 1024
_PAGES: Final = {"message-": "/messages/", "dead-event-": "/events/dead/", "event-": "/events/"}


def cause(category: Category) -> str:
    """Return what a category means for an operator."""
    return category.advice


def span(given: timedelta | float) -> str:
    """Return a duration in its two largest units: `250 ms`, `4.5 s`, `2 min 30 s`, `3 d 4 h`."""
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    rest = round(seconds)
    parts = []
    for size, unit in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def ago(moment: datetime, now: datetime | None = None) -> str:
    """Return how long ago a moment is, in one unit: `just now`, `12 min ago`, `in 5 s`."""
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    size = abs(seconds)
    if size < 1:
        return "just now"
    length, unit = next((length, unit) for length, unit in _UNITS if size >= length)
    text = f"{size // length:.0f} {unit}"
    return f"{text} ago" if seconds > 0 else f"in {text}"


def when(moment: datetime | None) -> Markup:
    """Return a moment as the time since, with the exact time on hover."""
    if moment is None:
        return Markup("")
    exact = moment.astimezone(UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        exact.isoformat(), exact.strftime("%Y-%m-%d %H:%M:%S UTC"), ago(moment)
    )


def count(number: int) -> str:
    """Return a number with thin spaces between its thousands."""
    return f"{number:,}".replace(",", "\u202f")


def short(identity: str) -> str:
    """Return the end of a long id, which tells runs apart."""
    return identity if len(identity) <= _SHOWN_ID + 6 else f"…{identity[-_SHOWN_ID:]}"


def first_line(text: str, limit: int = 200) -> str:
    """Return a text as one line."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def json_text(value: Any) -> str:
    """Return a value as indented JSON; without line breaks if they would fill most of the page."""
    text = to_json(value)
    lines = text.count(b",") + 2 * (text.count(b"[") + text.count(b"{"))
    depth = sum(1 for _ in levels(value))
    return to_json(value, indent=2).decode() if len(text) + 2 * lines * depth <= _INDENTED else text.decode()


def marked(value: Any) -> Markup:
    """Return a value as indented JSON in which redacted values are highlighted."""
    return marked_text(json_text(value))


def marked_text(text: str) -> Markup:
    """Return a text in which redacted values are highlighted."""
    mark = Markup('<mark title="redacted: the true value is kept">{}</mark>').format(MARK)
    return Markup(str(escape(text)).replace(MARK, str(mark)))  # noqa: S704 - escaped before


class Reference(NamedTuple):
    """The short name of a thing, and the address of its page."""

    text: str
    address: str


def broker_reference(name: str | None) -> Reference | None:
    """Return the link to the message or event that an audit log entry names, or None."""
    for prefix, place in _PAGES.items():
        if name and name.startswith(prefix):
            return Reference(f"{prefix.replace('-', ' ')}{short(name)}", place + name)
    return None
