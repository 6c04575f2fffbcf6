"""Moments and durations as one types them."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import InvalidInput
from redrive.starter.cli.list_options import page_cursor, parse_duration, parse_moment, read_page_cursor

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
DURATIONS = [
    ("500ms", timedelta(milliseconds=500)),
    ("1.5s", timedelta(seconds=1.5)),
    ("1h30m", timedelta(minutes=90)),
    ("3d", timedelta(days=3)),
    ("2w", timedelta(weeks=2)),
]


@pytest.mark.parametrize(("text", "duration"), DURATIONS)
def test_duration_is_read(text: str, duration: timedelta) -> None:
    """Numbers with their units, one after another."""
    assert parse_duration("--base", text) == duration
    assert parse_moment("--since", text, NOW) == NOW - duration


@pytest.mark.parametrize("text", ["", "5", "-5s", "5 s", "s", "5y", "٣d", "9999999999999999w"])
def test_wrong_duration_is_named(text: str) -> None:
    """The sentence begins with the option and what was typed."""
    with pytest.raises(InvalidInput, match=r"^--base "):
        parse_duration("--base", text)


def test_moment_may_name_its_zone() -> None:
    """Without a zone a time is the operator's own."""
    assert parse_moment("--since", "2026-05-01T10:00+02:00", NOW) == datetime(2026, 5, 1, 8, tzinfo=UTC)
    assert parse_moment("--since", "2026-05-01T10:00", NOW) == datetime(2026, 5, 1, 10).astimezone()
    assert parse_moment("--since", None, NOW) is None


@given(st.datetimes(datetime(1971, 1, 1), datetime(9000, 1, 1)), st.text())  # noqa: DTZ001
def test_cursor_brings_its_moment_back(now: datetime, inner: str) -> None:
    """Whatever the list's own cursor is, the next page counts from the same moment."""
    moment = now.replace(tzinfo=UTC, microsecond=0)
    assert read_page_cursor(page_cursor(inner, moment), NOW) == (inner, moment)


def test_first_page_counts_from_this_second() -> None:
    """Its cursor has no room for more."""
    assert read_page_cursor(None, NOW.replace(microsecond=7)) == (None, NOW.replace(microsecond=0))


@pytest.mark.parametrize("cursor", ["", "x", "x:y", "9" * 40 + ":x", "9" * 5000 + ":x"])
def test_wrong_cursor_is_named(cursor: str) -> None:
    """Text that no list gave is refused."""
    with pytest.raises(InvalidInput, match=r"^--cursor "):
        read_page_cursor(cursor, NOW)
