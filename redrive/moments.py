"""Moments from outside: they have a time zone, and are valid in UTC. Pure."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        # The first and the last hours of the calendar fall into another year elsewhere, which no date can hold.
        raise ValueError("a moment is in the years 1 to 9999, in UTC") from None


Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]
"""A moment of a query, a command, a cursor or a message. In UTC: the same moment is the same value in whatever zone."""
