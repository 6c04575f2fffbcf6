"""Whether a step can read what earlier steps return, by the JSON schemas of their models. Pure.

Only what is certain is told: a field that is not there, or a value that pydantic cannot take. Texts may be read as
numbers or dates, and what a schema does not say may be anything.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Schema = Mapping[str, Any]
_DEPTH: Final = 8
# Which types of JSON a value of a type can be read as. Pydantic reads texts as nearly anything that is not composed.
_READ_AS: Final = {
    "string": {"string", "integer", "number", "boolean", "null"},
    "integer": {"integer", "number", "boolean"},
    "number": {"number", "integer"},
    "boolean": {"boolean", "integer", "number"},
    "object": {"object"},
    "array": {"array"},
    "null": {"null"},
}


@dataclass(frozen=True)
class StepTypes:
    """A step's name, and the JSON schemas of its input and output."""

    name: str
    takes: Schema
    returns: Schema


def misfits(steps: Sequence[StepTypes]) -> Iterator[str]:
    """Yield where a step cannot read the output of an earlier one."""
    for index, step in enumerate(steps):
        wanted = step.takes.get("properties", {})
        for earlier in steps[:index]:
            if earlier.name not in wanted:
                continue
            problem = _problem(
                _Place(step.takes, wanted[earlier.name]), _Place(earlier.returns, earlier.returns), earlier.name, _DEPTH
            )
            if problem:
                yield f"step {step.name!r} cannot read the output of {earlier.name!r}: {problem}"


@dataclass(frozen=True)
class _Place:
    """A part of a schema, and the whole, which has its definitions."""

    root: Schema
    part: Schema

    def resolved(self) -> Schema:
        part = self.part
        for _ in range(_DEPTH):
            if "$ref" not in part:
                break
            part = self.root.get("$defs", {}).get(str(part["$ref"]).rpartition("/")[2], {})
        return part


def _problem(wanted: _Place, given: _Place, path: str, depth: int) -> str | None:
    wants, has = wanted.resolved(), given.resolved()
    kind, found = wants.get("type"), has.get("type")
    if depth == 0 or not isinstance(kind, str) or not isinstance(found, str):
        return None
    if kind not in _READ_AS.get(found, {kind}):
        return f"{path} is of type {found}, not {kind}"
    if kind != "object" or "properties" not in has:
        return None
    for name in wants.get("required", ()):
        if name not in has["properties"]:
            return f"{path}.{name} is required, and is not there"
    for name, part in wants.get("properties", {}).items():
        if name in has["properties"]:
            below = _problem(
                _Place(wanted.root, part), _Place(given.root, has["properties"][name]), f"{path}.{name}", depth - 1
            )
            if below:
                return below
    return None
