"""Texts for HTTP headers: one rule, for accepting such a text and for sending it. Pure."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, StringConstraints

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


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
