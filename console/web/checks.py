"""Checking an edited input while it is typed: against the module's schema, and as the edit that it makes. Pure.

The page shows a redacted input. What is left redacted is no part of the edit: the run keeps its true value.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import jsonschema_rs

from console.web.words import json_text
from redrive.documents import parse_payload
from redrive.errors import InvalidInput
from redrive.redaction import MARK

_PROBLEMS_NAMED: Final = 8


@dataclass(frozen=True)
class Check:
    """What an edited text comes to: the edit as a JSON Merge Patch, the fields it changes, and what does not fit.

    It is checked when the module's schema is known.
    """

    patch: dict[str, Any] | None = None
    changed: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    can_be_sent: bool = True
    is_checked: bool = False


def check_input(shown: dict[str, Any], text: str, schema: dict[str, Any] | None) -> Check:
    """Compare an edited text with what was shown, and with the schema where it is known."""
    try:
        edited = parse_payload(text)
    except InvalidInput as error:
        return _unsendable([str(error).removeprefix("payload: ")])
    unclear = list(_new_nulls(shown, edited))
    if unclear:
        return _unsendable(f"{path}: null cannot be put in by an edit; leave the field out" for path in unclear)
    patch = merge_patch_between(shown, edited)
    covered = [path for path, value in _leaves(patch) if MARK in json_text(value)]
    if covered:
        return _unsendable(f"{path}: would put {MARK} in place of true values; write them out" for path in covered)
    return Check(
        patch or None,
        [path for path, _ in _leaves(patch)],
        schema_problems(edited, schema) if schema else [],
        is_checked=schema is not None,
    )


def _unsendable(problems: Iterable[str]) -> Check:
    return Check(problems=list(problems), can_be_sent=False)


def merge_patch_between(shown: dict[str, Any], edited: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Merge Patch (RFC 7386) that makes one document of the other."""
    patch: dict[str, Any] = {name: None for name in shown if name not in edited}
    for name, value in edited.items():
        before = shown.get(name)
        if name in shown and _same(value, before):
            continue
        is_inside = isinstance(value, dict) and isinstance(before, dict)
        patch[name] = merge_patch_between(before or {}, value) if is_inside else value
    return patch


def _same(one: Any, other: Any) -> bool:
    """Compare JSON values: true is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other)


def _new_nulls(shown: dict[str, Any], edited: dict[str, Any], path: str = "") -> Iterator[str]:
    """Name fields that became null: in a merge patch that would remove them."""
    for name, value in edited.items():
        before = shown.get(name)
        if value is None and not (name in shown and before is None):
            yield f"{path}{name}"
        elif isinstance(value, dict):
            yield from _new_nulls(before if isinstance(before, dict) else {}, value, f"{path}{name}.")


def _leaves(patch: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Return the fields that an edit changes, each with what is put there."""
    for name, value in patch.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def schema_problems(document: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """Say where a document does not fit. A redacted value stands for one that did."""
    try:
        validator = jsonschema_rs.Draft202012Validator(schema, retriever=_nothing_from_elsewhere)
    except ValueError:
        return []
    sentences: list[str] = []
    for error in validator.iter_errors(document):
        if MARK not in str(error.instance):
            place = ".".join(str(part) for part in error.instance_path)
            sentences.append(f"{place}: {error.message}" if place else error.message)
        if len(sentences) == _PROBLEMS_NAMED:
            break
    return sentences


def _nothing_from_elsewhere(address: str) -> Any:
    raise ValueError(f"the schema refers to {address}, which is not fetched")
