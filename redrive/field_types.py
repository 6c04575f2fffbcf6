"""Types of fields that come from outside: moments, texts for HTTP headers, labels. Pure.

Moments have a time zone and are valid in UTC. For header texts there is one rule, for accepting and for sending them.
"""

import re
from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import AfterValidator, AwareDatetime, Field, StringConstraints, TypeAdapter, ValidationError

from redrive.errors import InvalidInput

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        # The first and the last hours of the calendar fall into another year elsewhere, which no date can hold.
        raise ValueError("a moment is in the years 1 to 9999, in UTC") from None


Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]


"""A moment of a query, a command, a cursor or a message. In UTC: the same moment is the same value in whatever zone."""


def header_problem(value: str) -> str | None:
    """Say why a text cannot be the value of a header, or None."""
    if not value:
        return "is empty"
    control = _CONTROL.search(value)
    if control:
        return f"holds the control character {control[0]!r} at position {control.start() + 1}; remove it"
    if value != value.strip():
        return "begins or ends with a space; remove it"
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return f"holds the lone surrogate {value[error.start]!r}, which is not valid text"
    return None


def _checked(value: str) -> str:
    problem = header_problem(value)
    if problem:
        raise ValueError(f"it is sent as an HTTP header and {problem}")
    return value


HeaderText = Annotated[str, StringConstraints(min_length=1, max_length=255), AfterValidator(_checked)]


"""A text that each step sends along with its calls."""


_LABEL_NAME: Final = r"[a-z][a-z0-9_]{0,39}"
_LABEL_VALUE: Final = r"[^\s,\x00-\x1f\x7f-\x9f]{1,128}"
_LABEL: Final = f"{_LABEL_NAME}={_LABEL_VALUE}"
LABEL_LIMIT: Final = 10


def _written(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"it holds the lone surrogate {value[error.start]!r}, which is not valid text") from None
    return value


LabelName = Annotated[str, StringConstraints(pattern=f"^{_LABEL_NAME}$")]
LabelValue = Annotated[str, StringConstraints(pattern=f"^{_LABEL_VALUE}$"), AfterValidator(_written)]
Labels = Annotated[dict[LabelName, LabelValue], Field(max_length=LABEL_LIMIT)]
"""What a caller says of a run, by name: it is on every log line, span and dead letter of the run."""

# Compiled by Python, in a third of a millisecond: pydantic's own engine takes 25, whoever imports it. There, `$` alone
# would let a newline pass at the end.
_LABEL_FILTER: Final = re.compile(rf"^{_LABEL}(,{_LABEL}){{0,{LABEL_LIMIT - 1}}}(?!\n)$")
LabelFilter = Annotated[str, StringConstraints(pattern=_LABEL_FILTER), AfterValidator(_written)]
"""Labels that something has to have, all of them: `mission_id=42,stage_id=2`."""


def checked_label_filter(label: str | None) -> str | None:
    """Return a filter by labels, or raise if it is none."""
    try:
        return TypeAdapter(LabelFilter | None).validate_python(label)
    except ValidationError:
        raise InvalidInput(
            f"label: {label!r} is not name=value, or several with commas between them: mission_id=42,stage_id=2"
        ) from None
