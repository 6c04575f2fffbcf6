"""Edits of a step's input, held against the module's input schema: which fields does it not know? Pure.

A field that a model does not know is dropped when the input is read: the edit would do nothing, and nobody would be
told. So unknown fields are named, with the known field that looks most like them.
"""

import difflib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

Schema = dict[str, Any]
# A schema may refer to itself, and so may be as deep as the edit.
_DEEPEST: Final = 100
_NAMED: Final = 20
_SHOWN: Final = 64


class UnknownField(NamedTuple):
    """A field of an edit that the module's input does not have, and the known one nearest to it."""

    path: str
    nearest: str | None

    def __str__(self) -> str:
        hint = f"; did you mean {self.nearest!r}?" if self.nearest else ""
        return f"{self.path}: the input has no such field{hint}"


def unknown_fields(patch: dict[str, Any], schema: Schema) -> list[UnknownField]:
    """Return the first fields of an edit that a module's input schema does not have."""
    found: list[UnknownField] = []
    for field in _walk(patch, [schema], schema, ()):
        found.append(field)
        if len(found) == _NAMED:
            break
    return found


def _walk(value: Any, schemas: list[Schema], root: Schema, path: tuple[str, ...]) -> Iterator[UnknownField]:
    """Walk a value beside the schemas that it may have; where one of them takes anything, there is nothing to say."""
    if len(path) > _DEEPEST:
        return
    possible = [each for schema in schemas for each in _alternatives(schema, root)]
    if isinstance(value, list):
        items = [each["items"] for each in possible if isinstance(each.get("items"), dict)]
        for number, item in enumerate(value if items else []):
            yield from _walk(item, items, root, (*path, str(number)))
    if not isinstance(value, dict):
        return
    objects = [each for each in possible if _is_object(each)]
    if not objects or any(_is_free(each) for each in objects):
        return
    known: dict[str, list[Schema]] = {}
    for each in objects:
        for name, below in each["properties"].items():
            known.setdefault(name, []).append(below)
    for name, item in value.items():
        if name in known:
            yield from _walk(item, known[name], root, (*path, name))
        else:
            nearest = difflib.get_close_matches(name[:_SHOWN], known, n=1)
            yield UnknownField(".".join((*path, name[:_SHOWN])), nearest[0] if nearest else None)


def _alternatives(schema: Schema, root: Schema) -> Iterator[Schema]:
    """Return the schemas that a schema stands for: what it refers to, and its alternatives."""
    waiting, seen = [schema], 0
    while waiting and seen < _DEEPEST:
        seen += 1
        current = waiting.pop()
        yield current
        reference = str(current.get("$ref", "")).removeprefix("#/$defs/")
        target = root.get("$defs", {}).get(reference)
        further = [*([target] if target else []), *(current.get("anyOf") or []), *(current.get("oneOf") or [])]
        further += current.get("allOf") or []
        waiting += [each for each in further if isinstance(each, dict)]


def _is_object(schema: Schema) -> bool:
    return schema.get("type") == "object" or "properties" in schema


def _is_free(schema: Schema) -> bool:
    """Tell whether an object may have fields that its schema does not name."""
    others = schema.get("additionalProperties")
    return not isinstance(schema.get("properties"), dict) or (others is not None and others is not False)
