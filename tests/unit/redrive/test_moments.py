"""Moments from outside: in UTC, whatever the zone, or refused with a sentence."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from redrive.field_types import Moment

DAY = timedelta(hours=23, minutes=59)
MOMENTS: TypeAdapter[datetime] = TypeAdapter(Moment)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_what_is_no_moment_in_utc_is_refused(text: str) -> None:
    """The calendar ends there: with a sentence, not with an OverflowError."""
    with pytest.raises(ValidationError, match="years 1 to 9999, in UTC"):
        MOMENTS.validate_python(text)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_the_ends_of_the_calendar_are_moments(text: str) -> None:
    """`Since ever` and `until ever`, as some programs write them, are taken."""
    assert MOMENTS.validate_python(text) == datetime.fromisoformat(text)


@given(st.datetimes(timezones=st.builds(timezone, st.timedeltas(-DAY, DAY))))
def test_a_moment_is_in_utc_or_refused(moment: datetime) -> None:
    """Any moment of any zone: the same moment in UTC, or a ValidationError."""
    try:
        taken = MOMENTS.validate_python(moment)
    except ValidationError:
        return
    assert (taken, taken.tzinfo) == (moment, UTC)
