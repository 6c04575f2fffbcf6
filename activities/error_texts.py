"""The text and the stack of a module's error, in a form that can be stored: without secrets, and without failing."""

import traceback
from collections.abc import Iterator

from pydantic import ValidationError

from redrive.contracts import ERROR_TEXT_LIMIT
from redrive.documents import validation_sentence
from redrive.redaction.redactor import Redactor


def error_text(error: BaseException, redactor: Redactor) -> str:
    """Return an error's text, even if its `__str__` is broken or it has a lone surrogate."""
    if isinstance(error, ValidationError):
        # Pydantic's own text shows values without the field names that mark them as secret.
        return _storable(f"{error.title}: {validation_sentence(error, redactor)}")
    try:
        text = str(error)
    except Exception as broken:
        text = f"(its text cannot be shown: {type(broken).__name__})"
    return _storable(text)


def redacted_text(text: str, redactor: Redactor) -> str:
    """Return the beginning of a text, without secrets."""
    return redactor.beginning(text, ERROR_TEXT_LIMIT)


def redacted_stack(error: BaseException, redactor: Redactor) -> str:
    """Return the end of an error's stack, without secrets."""
    stack = "".join(traceback.format_exception(error))
    for cause in _causes(error):
        if isinstance(cause, ValidationError):
            for line in str(cause).splitlines():
                stack = stack.replace(line.strip(), line.strip().partition(" [type=")[0])
    return redactor.end(_storable(stack), ERROR_TEXT_LIMIT)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Iterate over an error and its causes, including groups."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        found = pending.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        pending += [found.__cause__, found.__context__]
        if isinstance(found, BaseExceptionGroup):
            pending += found.exceptions


def _storable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")
