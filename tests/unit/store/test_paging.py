"""Cursors: they lead on in the list that gave them, and are refused elsewhere."""

import base64
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.dead_letters import LetterFilter
from redrive.errors import InvalidInput
from redrive.postgres.paging import LARGEST_PAGE, Place, check_limit, cut, read_cursor, write_cursor

FILTER = LetterFilter(tenant="acme")
PLACE = Place(datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), "dead-letter-1", "exact")


@given(
    st.datetimes(timezones=st.just(UTC)),
    st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
)
def test_cursor_reads_as_it_was_written(at: datetime, identity: str) -> None:
    """To the microsecond: a row must not be skipped or shown twice."""
    place = Place(at, identity)
    assert read_cursor(write_cursor(place, FILTER), FILTER) == place


def test_no_cursor_is_the_beginning() -> None:
    """A list without one starts at its newest row."""
    assert read_cursor(None, FILTER) is None


def _encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "%%%",
        "é",
        "a" * 100_000,
        _encoded("{}"),
        _encoded("[]"),
        _encoded("null"),
        _encoded("123456" + "x" * 8 + "an id without a kind"),
        write_cursor(PLACE, FILTER)[4:],
        write_cursor(PLACE, FILTER)[:-4],
        write_cursor(PLACE, FILTER) + "AAAA",
    ],
)
def test_tampered_cursor_is_refused(cursor: str) -> None:
    """With a sentence, not with a stack trace; and without its whole length."""
    with pytest.raises(InvalidInput, match="cursor") as caught:
        read_cursor(cursor, FILTER)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("at", [b"\x7f" + b"\xff" * 7, b"\x80" + bytes(7)])
def test_a_cursor_with_a_moment_outside_the_calendar_is_refused(at: bytes) -> None:
    """The database could not be asked for it."""
    cursor = base64.urlsafe_b64encode(b"123456" + at + b"\0x").decode().rstrip("=")
    with pytest.raises(InvalidInput, match="not one that a list gave"):
        read_cursor(cursor, FILTER)


def test_cursor_is_short() -> None:
    """Besides the row's id it has two dozen characters at most, so that it can be copied from a terminal."""
    run = "dead-letter-run-01a1e86b96e17549bd7fc49949d8f132-book"
    assert len(write_cursor(Place(PLACE.at, run), FILTER)) <= 24 + len(run) * 4 / 3


@pytest.mark.parametrize("other", [LetterFilter(), LetterFilter(tenant="other"), LetterFilter(tenant="acme", step="x")])
def test_cursor_of_another_list_is_refused(other: LetterFilter) -> None:
    """Paging on with other filters would leave rows out unseen."""
    with pytest.raises(InvalidInput, match="other filters"):
        read_cursor(write_cursor(PLACE, FILTER), other)


@pytest.mark.parametrize("limit", [0, -1, LARGEST_PAGE + 1])
def test_page_of_any_size_is_refused(limit: int) -> None:
    """A page has at least a row and not all of them."""
    with pytest.raises(InvalidInput, match="a page has 1 to"):
        check_limit(limit)


def test_a_page_has_a_cursor_if_there_is_one_row_more() -> None:
    """One row more than the page shows is read: it is the first of the next page."""
    moments = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
    page = cut(moments, 2, lambda moment: Place(moment, "id"), FILTER)
    assert page.rows == moments[:2]
    assert read_cursor(page.cursor, FILTER) == Place(moments[1], "id")
    assert cut(moments, 3, lambda moment: Place(moment, "id"), FILTER).cursor is None
