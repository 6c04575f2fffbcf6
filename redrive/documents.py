"""JSON documents: what is accepted as a payload, and how a step's input is taken from its run. Pure."""

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from redrive.contracts import DEPTH_LIMIT, PAYLOAD_LIMIT, RunInput
from redrive.errors import InvalidInput, TooLarge
from redrive.redaction import Redactor

_REDACTOR = Redactor()
_FIELDS_NAMED = 10
_VALUE_SHOWN = 60
# Passed over at once: workflows check what they are sent, and have two seconds for half a million numbers.
_HARMLESS = frozenset({int, bool, type(None)})


def parse_payload(text: bytes | str) -> dict[str, Any]:
    """Parse a payload from JSON text, or say where it is wrong."""
    if len(text) > PAYLOAD_LIMIT:
        raise TooLarge(f"payload: {len(text)} bytes; the limit is {PAYLOAD_LIMIT} (pass a reference to large data)")
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidInput(f"payload: not valid JSON: {error}") from error
    return check_payload(value)


def check_payload(value: object) -> dict[str, Any]:
    """Return the value if it is a JSON object that every store can hold, and small enough; else say what is wrong."""
    if isinstance(value, Mapping):
        value = dict(value)
    if not isinstance(value, dict):
        raise InvalidInput(f"payload: a JSON object is needed, not {type(value).__name__}")
    problem = json_problem(value)
    if problem:
        raise InvalidInput(f"payload{problem}")
    size = json_size(value)
    if size > PAYLOAD_LIMIT:
        raise TooLarge(f"payload: {size} bytes; the limit is {PAYLOAD_LIMIT} (pass a reference to large data)")
    return value


def validated_run_input(**fields: Any) -> RunInput:
    """Make the input of a run, or say which field is wrong."""
    try:
        return RunInput(**fields)
    except ValidationError as error:
        raise InvalidInput(validation_sentence(error)) from error


def json_size(value: object) -> int:
    """Return how many bytes the value takes as JSON."""
    try:
        return len(to_json(value))
    except PydanticSerializationError as error:
        raise InvalidInput(f"payload: cannot be written as JSON: {error}") from error


def json_problem(value: object) -> str | None:
    """Return where and why a value is not plain JSON (`.items[2].price: NaN …`), or None."""
    # A stack, not recursion: ten thousand levels must give a sentence, not a RecursionError.
    pending: list[tuple[str, object, int]] = [("", value, 1)]
    while pending:
        path, item, depth = pending.pop()
        if depth > DEPTH_LIMIT and isinstance(item, dict | list):
            return f"{path[:80]}: nested deeper than {DEPTH_LIMIT} levels"
        if isinstance(item, dict):
            for name, inner in item.items():
                problem = f"key {name!r} is not text" if not isinstance(name, str) else _text_problem(name)
                if problem:
                    return f"{path}: {problem}"
                if type(inner) not in _HARMLESS:
                    pending.append((f"{path}.{name}", inner, depth + 1))
        elif isinstance(item, list):
            pending.extend(
                (f"{path}[{index}]", inner, depth + 1)
                for index, inner in enumerate(item)
                if type(inner) not in _HARMLESS
            )
        else:
            problem = _scalar_problem(item)
            if problem:
                return f"{path}: {problem}"
    return None


def number_problem(value: object) -> str | None:
    """Return where a Python value holds NaN or infinity, or None. Pydantic writes some of them as null."""
    pending: list[tuple[str, object]] = [("", value)]
    while pending:
        path, item = pending.pop()
        if isinstance(item, float) and not math.isfinite(item):
            return f"{path}: {item} is not a JSON number"
        if isinstance(item, dict):
            pending.extend((f"{path}.{name}", inner) for name, inner in item.items())
        elif isinstance(item, list | tuple):
            pending.extend((f"{path}[{index}]", inner) for index, inner in enumerate(item))
    return None


def _scalar_problem(item: object) -> str | None:
    if isinstance(item, str):
        return _text_problem(item)
    if isinstance(item, float) and not math.isfinite(item):
        return f"{item} is not a JSON number"
    if item is None or isinstance(item, bool | int | float):
        return None
    return f"{type(item).__name__} is not a JSON type"


def _text_problem(text: str) -> str | None:
    if "\0" in text:
        return "the character U+0000 cannot be stored; remove it"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"lone surrogate {text[error.start]!r} is not valid text"
    return None


def step_input(document: dict[str, Any], reads: Collection[str] | None) -> dict[str, Any]:
    """Return the part of a run's document that a step reads."""
    if reads is None:
        return document
    return {name: document[name] for name in reads if name in document}


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON Merge Patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def patched(document: dict[str, Any], patches: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Apply edits one after another. (They cannot be made into one: a patch has no word for "replace this object".)"""
    for patch in patches:
        document = merge_patch(document, patch)
    return document


def changed_paths(patch: dict[str, Any]) -> list[str]:
    """Name the fields that an edit changes."""
    paths = []
    for name, value in patch.items():
        inner = changed_paths(value) if isinstance(value, dict) else []
        paths += [f"{name}.{path}" for path in inner] or [name]
    return paths


def validation_sentence(error: ValidationError, redactor: Redactor = _REDACTOR) -> str:
    """Say which fields do not fit, with what was sent, in one line."""
    # Bounded: tens of thousands of wrong fields would hold up a workflow task until Temporal calls it a deadlock.
    sentences = list(itertools.islice(_field_sentences(error, redactor), _FIELDS_NAMED))
    more = error.error_count() - len(sentences)
    return "; ".join(sentences) + (f"; and {more} more" if more else "")


def _field_sentences(error: ValidationError, redactor: Redactor) -> Iterator[str]:
    for problem in error.errors(include_url=False, include_context=False):
        path = ".".join(str(part) for part in problem["loc"]) or "input"
        sent = problem["input"]
        if problem["type"] == "missing" or isinstance(sent, dict | list):
            yield f"{path}: {problem['msg']}"
        else:
            name = str(problem["loc"][-1]) if problem["loc"] else "input"
            if isinstance(sent, str):
                sent = redactor.beginning(sent, _VALUE_SHOWN)
            shown = redactor.value({name: sent})[name]
            yield f"{path}: {problem['msg']} (got {_bounded(repr(shown))})"


def _bounded(text: str, limit: int = _VALUE_SHOWN) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
