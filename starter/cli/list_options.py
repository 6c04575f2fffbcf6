"""Options and arguments of commands that read: which dead letter, which page; moments and durations as typed."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from redrive.errors import InvalidInput
from redrive.postgres.paging import LARGEST_PAGE
from redrive.starter.cli.terminal import Json

Letter = Annotated[
    str,
    Parameter(
        name="ID",
        help="The dead letter's id, `run-…/step`, or `workflow-id/activity`. A beginning that no other has is enough.",
    ),
]
_UNITS: Final = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_PART: Final = r"(\d+(?:\.\d+)?)(ms|[smhdw])"
_DURATION: Final = re.compile(rf"(?:{_PART})+", re.ASCII)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """Which page of a list, and how it is printed."""

    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=LARGEST_PAGE), help="Maximum number of rows.")] = 20
    cursor: Annotated[str | None, Parameter(help="Where the previous page ended, as printed there.")] = None
    json: Json = False


FIRST_PAGE = PageOptions()


def parse_duration(option: str, text: str) -> timedelta:
    """Read `500ms`, `30s`, `1h30m`, `3d`."""
    if not _DURATION.fullmatch(text):
        raise InvalidInput(f"{option} {text!r}: not a duration; write 500ms, 30s, 5m, 2h or 3d")
    try:
        return sum((float(count) * _UNITS[unit] for count, unit in re.findall(_PART, text)), timedelta())
    except OverflowError:
        raise InvalidInput(f"{option} {text!r}: too long") from None


def parse_moment(option: str, text: str | None, now: datetime) -> datetime | None:
    """Read a moment: a duration ago, or ISO 8601, in local time without a zone."""
    if text is None:
        return None
    try:
        if _DURATION.fullmatch(text):
            return now - parse_duration(option, text)
        # Without a zone it is the operator's own.
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"{option} {text!r}: not a time; write 2h or 3d for so long ago, or 2026-05-01T10:00 (ISO 8601)"
        ) from None


def page_cursor(cursor: str, now: datetime) -> str:
    """Add to a list's cursor the moment that `2h` ago was counted from: the next page belongs to the same list."""
    return f"{int(now.timestamp()):x}:{cursor}"


def read_page_cursor(cursor: str | None, now: datetime) -> tuple[str | None, datetime]:
    """Return the list's own cursor and the moment that times are counted from; without a cursor this second."""
    if cursor is None:
        return None, now.replace(microsecond=0)
    seconds, _, inner = cursor.partition(":")
    try:
        return inner, datetime.fromtimestamp(int(seconds, 16), UTC)
    except (ValueError, OverflowError, OSError):
        raise InvalidInput(f"--cursor {cursor[:40]!r}: not one that a list gave: start again without one") from None
