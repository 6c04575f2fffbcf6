"""JSON documents: what is accepted as a payload, and how a step input is taken from its run. Pure."""

import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from redrive.contracts import DEPTH_LIMIT, DIGIT_LIMIT, ELEMENT_LIMIT, NAME_LIMIT, PAYLOAD_LIMIT, RunInput
from redrive.errors import InvalidInput, TooLarge
from redrive.levels import Level, bounded, dotted, leaves, levels, path_text, path_to
from redrive.redaction.redactor import Redactor

PATHS_NAMED: Final = 100
_REDACTOR = Redactor()
_FIELDS_NAMED = 10
# Listing one problem costs as much as listing all.
_PROBLEMS_READ = 1000
_MESSAGE_SHOWN = 200
_VALUE_SHOWN = 60
_TOO_LONG = 10**DIGIT_LIMIT
# A text without escapes; one that is not closed goes to the end.
_TEXT = re.compile(rb'"[^"]*"?')
_SPACE = b" \t\r\n"
_PART = 64 * 1024


def parse_payload(text: bytes | str) -> dict[str, Any]:
    """Parse a payload from JSON text, or say where it is wrong."""
    if len(text) > PAYLOAD_LIMIT:
        raise TooLarge(f"payload: {len(text)} bytes; the limit is {PAYLOAD_LIMIT} (pass a reference to large data)")
    try:
        value = parse_json(text)
    except TooLarge as error:
        raise TooLarge(f"payload: {error}") from None
    except ValueError as error:
        raise InvalidInput(f"payload: not valid JSON: {error}") from error
    return check_payload(value)


def parse_json(text: bytes | str, elements: int = ELEMENT_LIMIT) -> Any:
    """Parse JSON text. Raise TooLarge, before parsing, if it has too many elements, or ValueError."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    # Not parsed first: half a million empty lists are one megabyte, and take a quarter of a second and 30 MB.
    if _has_more_elements(data, elements):
        raise TooLarge(f"more than {elements} elements (pass a reference to large data)")
    return from_json(data, allow_inf_nan=False)


def _has_more_elements(data: bytes, limit: int) -> bool:
    """Tell whether JSON text has more members and items than this. For invalid JSON either answer is possible."""
    # Commas in texts count here: fast, and enough for nearly every document.
    if _count_elements(data) <= limit:
        return False
    return _count_elements(_without_texts(data)) > limit


def _without_texts(data: bytes) -> bytearray:
    """Return JSON text with a digit for each text, and no space. Part by part: half a million texts take 30 MB."""
    data = data.replace(rb"\\", b"").replace(rb"\"", b"")
    kept, is_inside = bytearray(), False
    for start in range(0, len(data), _PART):
        part = b'"' * is_inside + data[start : start + _PART]
        is_inside = part.count(b'"') % 2 == 1
        kept += _TEXT.sub(b"0", part)
    return kept.translate(None, _SPACE)


def _count_elements(data: bytes | bytearray) -> int:
    return data.count(b",") + data.count(b"[") + data.count(b"{") - data.count(b"[]") - data.count(b"{}")


def check_payload(value: object) -> dict[str, Any]:
    """Return the value if it is a JSON object that every store can hold, and small enough; otherwise raise why not."""
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
    """Build a run input, or raise which field is wrong."""
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


class Problem(NamedTuple):
    """What is wrong with a document, and where: `.items[2].price`, or an empty path for the document itself."""

    place: str
    sentence: str


def json_problem(value: object, elements: int = ELEMENT_LIMIT) -> str | None:
    """Return where and why a value is not plain JSON (`.items[2].price: NaN …`), or None."""
    problem = first_problem(value, elements)
    return f"{problem.place}: {problem.sentence}" if problem else None


def first_problem(value: object, elements: int = ELEMENT_LIMIT) -> Problem | None:
    """Return where and why a value is not plain JSON that every store can hold, or None."""
    walked: list[Level] = []
    count = 0
    for level in levels(value):
        # Before the level is walked: an oversized document must not cost more than an allowed one.
        count += level.count if walked else 0
        if count > elements:
            return Problem("", f"more than {elements} elements; send fewer, or a reference to the data")
        if len(walked) > DEPTH_LIMIT:
            return Problem(_holder_place(walked, level), f"nested deeper than {DEPTH_LIMIT} levels")
        problem = _names_problem(walked, level)
        walked.append(level)
        problem = problem or _values_problem(walked)
        if problem:
            return problem
    return None


def number_problem(value: object) -> str | None:
    """Return where a Python value holds NaN or infinity, or None. Pydantic writes some of them as null."""
    walked: list[Level] = []
    for level in levels(value, (list, tuple)):
        walked.append(level)
        for kind, items in level.by_kind.items():
            if issubclass(kind, float) and not all(map(math.isfinite, items)):
                problem = _located(walked, kind)
                return f"{problem.place}: {problem.sentence}"
    return None


def _names_problem(above: list[Level], level: Level) -> Problem | None:
    names = level.names
    if not names:
        return None
    is_text = all(issubclass(kind, str) for kind in dict.fromkeys(map(type, names)))
    if is_text and max(map(len, names)) <= NAME_LIMIT and _text_problem("".join(names)) is None:
        return None
    holder, sentence = next(
        (holder, problem) for holder in level.dicts for problem in map(_name_problem, holder) if problem
    )
    return Problem(path_text(path_to(above, lambda item: item is holder)), sentence)


def _name_problem(name: object) -> str | None:
    if not isinstance(name, str):
        return f"key {bounded(repr(name), _MESSAGE_SHOWN)} is not text"
    if len(name) > NAME_LIMIT:
        return f"key {name[:20]!r}… has {len(name)} characters; the limit is {NAME_LIMIT}"
    return _text_problem(name)


def _values_problem(walked: list[Level]) -> Problem | None:
    for kind, items in walked[-1].by_kind.items():
        if not issubclass(kind, dict | list) and _is_any_wrong(kind, items):
            return _located(walked, kind)
    return None


def _is_any_wrong(kind: type, items: list[Any]) -> bool:
    """Tell whether any of these values of one kind has a problem, in one pass over them."""
    if issubclass(kind, str):
        return _text_problem("".join(items)) is not None
    if issubclass(kind, float):
        return not all(map(math.isfinite, items))
    if issubclass(kind, int):
        return bool(max(items) >= _TOO_LONG or min(items) <= -_TOO_LONG)
    return True


def _located(walked: list[Level], kind: type) -> Problem:
    items = walked[-1].by_kind[kind]
    wrong, sentence = next((item, problem) for item in items if (problem := _scalar_problem(item)))
    return Problem(path_text(path_to(walked, lambda item: item is wrong)), sentence)


def _holder_place(walked: list[Level], level: Level) -> str:
    first = (level.dicts or level.lists)[0]
    return path_text(path_to(walked, lambda item: item is first))


def _scalar_problem(item: object) -> str | None:
    if isinstance(item, str):
        return _text_problem(item)
    if isinstance(item, float) and not math.isfinite(item):
        return f"{item} is not a JSON number"
    if isinstance(item, int) and abs(item) >= _TOO_LONG:
        return f"a number of more than {DIGIT_LIMIT} digits; send it as text"
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
    """Apply edits in sequence. (They cannot be merged: a patch cannot deadline_pool "replace this object".)"""
    for patch in patches:
        document = merge_patch(document, patch)
    return document


def changed_paths(patch: dict[str, Any]) -> list[str]:
    """Return the fields that an edit changes; if there are very many, the first ones and how many more."""
    named: list[str] = []
    more = 0
    for leaf in leaves(patch):
        if len(named) < PATHS_NAMED:
            named.append(dotted(leaf.names))
        else:
            more += 1
    return [*named, f"and {more} more"] if more else named


def validation_sentence(error: ValidationError, redactor: Redactor = _REDACTOR) -> str:
    """Return which fields do not fit, with what was sent, in one line."""
    count = error.error_count()
    if count > _PROBLEMS_READ:
        return f"{count} fields do not fit {bounded(error.title, _MESSAGE_SHOWN)}: too many to name"
    sentences = list(itertools.islice(_field_sentences(error, redactor), _FIELDS_NAMED))
    more = count - len(sentences)
    return "; ".join(sentences) + (f"; and {more} more" if more else "")


def _field_sentences(error: ValidationError, redactor: Redactor) -> Iterator[str]:
    for problem in error.errors(include_url=False, include_context=False):
        path = dotted([str(part) for part in problem["loc"]]) or "input"
        sent, message = problem["input"], bounded(problem["msg"], _MESSAGE_SHOWN)
        if problem["type"] == "missing" or isinstance(sent, dict | list):
            yield f"{path}: {message}"
        else:
            name = str(problem["loc"][-1]) if problem["loc"] else "input"
            yield f"{path}: {message} (got {_shown(name, sent, redactor)})"


def _shown(name: str, sent: object, redactor: Redactor) -> str:
    """Return the beginning of a value, redacted."""
    if isinstance(sent, str):
        sent = redactor.beginning(sent, _VALUE_SHOWN)
    elif isinstance(sent, bytes):
        sent = f"{len(sent)} bytes"
    shown = redactor.value({name: sent})[name]
    is_long = isinstance(shown, int) and abs(shown) >= _TOO_LONG
    return "a very long number" if is_long else bounded(repr(shown), _VALUE_SHOWN)
