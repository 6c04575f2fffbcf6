"""The outcome of a step's attempt, in the form in which it travels: earlier attempts, a result, an error's text. Pure.

Attempts travel from one to the next in Temporal's heartbeat details, so that keeping them costs no database write.
A result is JSON that Temporal can carry: it would retry a result that it cannot, effects included. An error's text and
stack are without secrets, and reading them never fails.
"""

import traceback
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from redrive.categories import Category
from redrive.classify import Classification
from redrive.contracts import ATTEMPT_TEXT_LIMIT, ATTEMPTS_KEPT, ERROR_TEXT_LIMIT, KEEPS_END, RESULT_LIMIT, Attempt
from redrive.documents import json_problem, number_problem, validation_sentence
from redrive.errors import RedriveError, Terminal
from redrive.modules import Module, error_place
from redrive.policy import RetryPolicy
from redrive.redaction.redactor import Redactor

_ATTEMPTS = TypeAdapter(list[Attempt])


def earlier_attempts(
    prior: Sequence[Attempt], heartbeat_details: Sequence[Any], attempt: int, now: datetime
) -> list[Attempt]:
    """Return the failed attempts before this one, with an entry for each that ended without a report."""
    known = {entry.attempt: entry for entry in (*prior, *_reported(heartbeat_details))}
    first_silent = max(known, default=0) + 1
    for number in range(max(first_silent, attempt - ATTEMPTS_KEPT), attempt):
        known[number] = _interrupted(number, now)
    return [known[number] for number in sorted(known)]


def _reported(heartbeat_details: Sequence[Any]) -> list[Attempt]:
    try:
        return _ATTEMPTS.validate_python(heartbeat_details[0]) if heartbeat_details else []
    except ValidationError:
        return []


def _interrupted(number: int, now: datetime) -> Attempt:
    return Attempt(
        attempt=number,
        at=now,
        category=Category.TIMEOUT,
        error_type="Interrupted",
        error="the worker died, was stopped or stopped reporting during this attempt",
    )


def with_attempt(earlier: Sequence[Attempt], entry: Attempt) -> list[Attempt]:
    """Return the attempts with one more, bounded: the first and the latest are kept."""
    entry = entry.model_copy(update={"error": entry.error[:ATTEMPT_TEXT_LIMIT]})
    attempts = [*earlier, entry]
    if len(attempts) > ATTEMPTS_KEPT:
        attempts = [attempts[0], *attempts[-(ATTEMPTS_KEPT - 1) :]]
    return attempts


def to_details(attempts: Sequence[Attempt]) -> list[dict[str, Any]]:
    """Return the attempts as heartbeat details."""
    details: list[dict[str, Any]] = _ATTEMPTS.dump_python(list(attempts), mode="json")
    return details


def validated_input(module: Module[Any, Any], document: dict[str, Any], redactor: Redactor) -> BaseModel:
    """Return the step input as the module's model, or end its step."""
    try:
        validated: BaseModel = module.validate(document)
    except ValidationError as error:
        sentence = validation_sentence(error, redactor)
        # Not `from error`: pydantic's own text, with the values as sent, would be in the stack.
        raise Terminal(f"the input does not fit module {module.name!r}: {sentence}") from None
    return validated


def plain_result(module: Module[Any, Any], output: object) -> Any:
    """Return a module's result as plain JSON, or end its step."""
    if not isinstance(output, module.output_model):
        wanted = module.output_model.__name__
        raise Terminal(
            f"module {module.name!r} returned {type(output).__name__}, not {wanted}", category=Category.SERIALIZATION
        )
    value = _plain(module, output)
    size = len(to_json(value))
    if size > RESULT_LIMIT:
        raise Terminal(
            f"module {module.name!r} returned {size} bytes; the limit is {RESULT_LIMIT} (return a reference)",
            category=Category.TOO_LARGE,
        )
    return value


def packed_result(value: Any, attempt: int, earlier: Sequence[Attempt], *, keeps_end: bool) -> RawValue:
    """Serialise the result of an attempt."""
    output = to_json(value)
    rest = to_json({"size": len(output), "attempt": attempt, "attempts": to_details(earlier)})
    # Assembled as bytes, so that a megabyte is copied once.
    data = b'{"output":' + output + b"," + rest.removeprefix(b"{")
    metadata = {"encoding": b"json/plain"} | ({KEEPS_END: b"true"} if keeps_end else {})
    return RawValue(Payload(metadata=metadata, data=data))


def _plain(module: Module[Any, Any], output: BaseModel) -> Any:
    try:
        value = output.model_dump(mode="json")
    except (PydanticSerializationError, ValueError) as error:
        raise Terminal(
            f"module {module.name!r} returned what is not JSON: {error}", category=Category.SERIALIZATION
        ) from error
    problem = json_problem(value) or number_problem(output.model_dump())
    if problem:
        raise Terminal(f"module {module.name!r} returned{problem}", category=Category.SERIALIZATION)
    return value


def failure_message(
    error: BaseException,
    found: Classification,
    policy: RetryPolicy,
    time_left: timedelta,
    *,
    module: Module[Any, Any] | None,
    redactor: Redactor,
) -> str:
    """Say why an attempt failed; `time_left` is what it had."""
    text = error_text(error, redactor)
    if isinstance(error, TimeoutError) and not text:
        if policy.deadline is not None and time_left < policy.timeout:
            return f"the step used up the {policy.deadline.total_seconds():g} s that its policy allows for all attempts"
        return f"the attempt took longer than its deadline of {policy.timeout.total_seconds():g} s"
    if found.category is not Category.UNKNOWN or isinstance(error, RedriveError):
        return text or type(error).__name__
    # Nobody expected it: without its type and line, `'nokey'` says nothing.
    place = error_place(error, module.function.__module__ if module else "")
    return f"{type(error).__name__}: {text}".rstrip(": ") + (f" ({place})" if place else "")


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
