"""Ids that callers give: keys, correlation ids, request ids. Pure.

An id is stored, searched for and shown unredacted, so none may be a secret. It is refused on entry, and never in a
workflow: what counts as a secret changes with releases, and a history must always replay the same.
"""

from redrive.errors import InvalidInput
from redrive.redaction.redactor import Redactor

_REDACTOR = Redactor()


def shown_identifier(value: str) -> str:
    """Return an id in the form in which a refusal shows it."""
    return _REDACTOR.text(value)


def check_identifier(field: str, value: str) -> str:
    """Return an id that holds no secret, or raise."""
    shown = shown_identifier(value)
    if shown != value:
        raise InvalidInput(
            f"{field}: {shown!r} holds what looks like a secret or a card number; an id is stored and shown as it is: "
            "give a reference, or a hash of it"
        )
    return value


def check_identifiers(**given: str | None) -> None:
    """Check the ids that are given, or raise InvalidInput naming the first that holds a secret."""
    for field, value in given.items():
        if value is not None:
            check_identifier(field, value)
