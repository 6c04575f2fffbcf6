"""Whether a payload fits a pipeline: the same check, in the same words, with the modules' code and without it. Pure.

Without the code, by the rules of an input model as JSON. A JSON schema would refuse what the model takes ("5" for an
integer), and in other words. These are pydantic's own rules, without those that are code: what they refuse, the model
refuses, with the same messages. What they accept, it may refuse.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import SchemaValidator

from redrive.documents import validation_sentence
from redrive.errors import InvalidInput, UnknownPipeline

Node = dict[str, Any]
_ANYTHING: Final[Node] = {"type": "any"}
_LEAVES: Final = frozenset(
    {
        "any",
        "none",
        "bool",
        "int",
        "float",
        "decimal",
        "str",
        "bytes",
        "date",
        "time",
        "datetime",
        "timedelta",
        "uuid",
        "url",
        "multi-host-url",
    }
)
# What is built of others, and the keys under which they stand: one rule, a list of rules, or rules by name.
_HOLDERS: Final = {
    "nullable": ("schema",),
    "default": ("schema",),
    "list": ("items_schema",),
    "set": ("items_schema",),
    "frozenset": ("items_schema",),
    "tuple": ("items_schema",),
    "dict": ("keys_schema", "values_schema"),
    "model": ("schema",),
    "model-fields": ("fields", "extras_schema"),
    "model-field": ("schema",),
    "typed-dict": ("fields", "extras_schema"),
    "typed-dict-field": ("schema",),
}
_NOT_KEPT: Final = frozenset({"ref", "default", "on_error", "post_init", "custom_init"})
# These check nothing.
_WITHOUT_MEANING: Final = frozenset(
    {"cls", "metadata", "serialization", "computed_fields", "default_factory", "generic_origin", "choices"}
)


class _Instance:
    """Stands for the instance that a model would make: nobody looks at it."""

    __slots__ = ("__dict__", "__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__")


class _Writer:
    """Writes the rules of one model."""

    def __init__(self) -> None:
        self.is_complete = True
        self._names: dict[str, str] = {}

    def write(self, node: Node) -> Node:
        """Return a rule with everything in it that is not code."""
        kind = node["type"]
        if kind in _LEAVES:
            return self._plain(node)
        if kind in _HOLDERS:
            return self._holder(kind, node)
        return self._special(kind, node)

    def _special(self, kind: str, node: Node) -> Node:
        match kind:
            case "function-after":
                # It can only refuse more.
                self.is_complete = False
                written = self.write(node["schema"])
            case "json-or-python":
                written = self.write(node["json_schema"])
            case "definitions":
                definitions = [self.write(each) | {"ref": self._name(each["ref"])} for each in node["definitions"]]
                written = {"type": kind, "schema": self.write(node["schema"]), "definitions": definitions}
            case "definition-ref":
                written = {"type": kind, "schema_ref": self._name(node["schema_ref"])}
            case "literal" | "enum":
                written = self._choice(node)
            case "union" if all(isinstance(each, dict) and each["type"] in _LEAVES for each in node["choices"]):
                # Of others, messages name classes.
                written = self._plain(node) | {"choices": [self._plain(each) for each in node["choices"]]}
            case _:
                written = self._unknown()
        return written

    def _holder(self, kind: str, node: Node) -> Node:
        if node.get("custom_init") or node.get("on_error", "raise") != "raise":
            return self._unknown()
        if node.get("post_init"):
            self.is_complete = False
        below = {key: self._below(node[key]) for key in _HOLDERS[kind] if node.get(key) is not None}
        if kind == "model" and below["schema"] == _ANYTHING:
            return _ANYTHING
        default = {"default": None, "validate_default": False} if kind == "default" else {}
        return self._plain(node) | below | default

    def _below(self, below: Any) -> Any:
        if isinstance(below, list):
            return [self.write(each) for each in below]
        if "type" in below and isinstance(below["type"], str):
            return self.write(below)
        return {name: self.write(each) for name, each in below.items()}

    def _choice(self, node: Node) -> Node:
        values = [each.value for each in node["members"]] if node["type"] == "enum" else node["expected"]
        if node.get("missing") is not None or not all(type(value) is str for value in values):
            return self._unknown()
        return {"type": "literal", "expected": list(values)}

    def _plain(self, node: Node) -> Node:
        """Return a node with what can be written as JSON."""
        kept: Node = {}
        for key, value in node.items():
            if key in _HOLDERS.get(node["type"], ()) or key in _NOT_KEPT:
                continue
            if isinstance(value, str | bool | int | float) or key == "validation_alias":
                kept[key] = value
            elif key == "config":
                kept[key] = {name: each for name, each in value.items() if isinstance(each, str | bool | int | float)}
            elif key not in _WITHOUT_MEANING and value is not None:
                self.is_complete = False
        return kept

    def _unknown(self) -> Node:
        self.is_complete = False
        return _ANYTHING

    def _name(self, ref: str) -> str:
        # Pydantic's own names hold addresses in memory.
        return self._names.setdefault(ref, f"model-{len(self._names)}")


def model_rules(model: type[BaseModel]) -> tuple[Node, bool]:
    """Return a model's rules, and whether they are all that it checks."""
    writer = _Writer()
    rules = writer.write(dict(model.__pydantic_core_schema__))
    return rules, writer.is_complete


def rules_validator(rules: Node) -> SchemaValidator:
    """Return what checks a document by rules. Raises pydantic's SchemaError for rules of another version."""
    return SchemaValidator(_with_classes(rules))


def _with_classes(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_classes(each) for each in value]
    if not isinstance(value, dict):
        return value
    below = {key: _with_classes(each) for key, each in value.items()}
    # The fields of a model may themselves be called "type".
    return below | {"cls": _Instance} if value.get("type") == "model" and "schema" in value else below


@dataclass(frozen=True)
class StepShape:
    """What the check needs of a step."""

    name: str
    required: Sequence[Sequence[str]]
    """Of each required field, the names that may carry it; the field's own comes first."""
    validate: Callable[[dict[str, Any]], object]
    """Check the step input in a run's document. Raises pydantic's ValidationError."""
    reads: Collection[str] | None = None
    """The names that it can read; None: any."""


def check_fits(steps: Sequence[StepShape], payload: dict[str, Any]) -> None:
    """Refuse a payload with which a step could never start."""
    for taken in sorted({step.name for step in steps} & payload.keys()):
        raise InvalidInput(f"payload.{taken}: the name belongs to a step, whose output stands there; rename the field")
    first = steps[0]
    try:
        first.validate(payload)
    except ValidationError as error:
        raise InvalidInput(f"payload does not fit {first.name!r}: {validation_sentence(error)}") from error
    available = set(payload)
    for earlier, step in itertools.pairwise(steps):
        available.add(earlier.name)
        _check_later_step(step, available, first)


def _check_later_step(step: StepShape, available: Collection[str], first: StepShape) -> None:
    for names in step.required:
        if any(name in available for name in names):
            continue
        how = ""
        if first.reads and any(name in first.reads for name in names):
            how = (
                f". The default in {first.name!r} is for that step alone: send the field, or give {step.name!r} the "
                f"same default, or return it from {first.name!r} and read it from there"
            )
        raise InvalidInput(f"payload.{names[0]}: missing; step {step.name!r} needs it{how}")


def unknown_pipeline(name: str, known: Iterable[str]) -> UnknownPipeline:
    """Refuse the name of a pipeline, with those that exist."""
    names = ", ".join(sorted(known)) or "none"
    return UnknownPipeline(f"pipeline {name!r} is not known here; known: {names}")
