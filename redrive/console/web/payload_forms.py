"""Forms made from a JSON schema: the fields of a pipeline's payload, and the document that was entered. Pure."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from redrive.contracts import Catalog
from redrive.errors import UnknownPipeline

PREFIX: Final = "field."
_KINDS: Final = {"string": "text", "integer": "number", "number": "number"}
_YES_NO: Final = ("true", "false")


class FormField(NamedTuple):
    """A field of a form, of a kind: text, secret, number, choice or json."""

    name: str
    kind: str
    is_required: bool
    choices: tuple[str, ...]
    hint: str


def payload_schema(catalog: Catalog, pipeline: str) -> dict[str, Any]:
    """Return the schema of a pipeline's payload: what its steps read that no earlier step returns."""
    found = next((each for each in catalog.pipelines if each.name == pipeline), None)
    if found is None:
        raise UnknownPipeline(f"no worker knows the pipeline {pipeline!r}")
    schemas = {module.name: module.input_schema for module in catalog.modules}
    properties: dict[str, Any] = {}
    required: list[str] = []
    definitions: dict[str, Any] = {}
    for place, step in enumerate(found.steps):
        schema = schemas.get(step, {})
        wanted = {name: each for name, each in schema.get("properties", {}).items() if name not in found.steps[:place]}
        properties = wanted | properties
        required += [name for name in schema.get("required", []) if name in wanted and name not in required]
        definitions = schema.get("$defs", {}) | definitions
    return {"type": "object", "properties": properties, "required": required, "$defs": definitions}


def form_fields(schema: Mapping[str, Any]) -> list[FormField]:
    """Return the fields of a form for a schema, those that are required first."""
    required = schema.get("required", [])
    fields = [
        _field(name, each, schema.get("$defs", {}), is_required=name in required)
        for name, each in schema.get("properties", {}).items()
    ]
    return sorted(fields, key=lambda field: not field.is_required)


def _field(name: str, schema: Any, definitions: Mapping[str, Any], *, is_required: bool) -> FormField:
    plain = _plain(schema, definitions)
    hint = schema.get("description", "") if isinstance(schema, dict) else ""
    kind, choices = _kind(plain)
    if isinstance(schema, dict) and schema.get("writeOnly"):
        kind = "secret"
    return FormField(name, kind, is_required, choices, str(hint or plain.get("description") or "")[:300])


def _plain(schema: Any, definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema that a reference or an optional field stands for."""
    if not isinstance(schema, dict):
        return {}
    options = [each for each in schema.get("anyOf", []) if each != {"type": "null"}]
    if len(options) == 1:
        return _plain(options[0], definitions)
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    found = definitions.get(name)
    return found if isinstance(found, dict) else schema


def _kind(schema: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    values = schema.get("enum")
    if isinstance(values, list) and all(isinstance(value, str) for value in values):
        return "choice", tuple(values)
    if schema.get("type") == "boolean":
        return "choice", _YES_NO
    kind = schema.get("type")
    return (_KINDS.get(kind, "json") if isinstance(kind, str) else "json"), ()


def read_fields(schema: Mapping[str, Any], given: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return the document that was entered, without the fields that are empty, and what cannot be read."""
    document: dict[str, Any] = {}
    problems = []
    for field in form_fields(schema):
        text = given.get(PREFIX + field.name, "")
        if not text.strip():
            continue
        is_text = field.kind in {"text", "secret"} or (field.kind == "choice" and field.choices != _YES_NO)
        try:
            document[field.name] = text if is_text else from_json(text)
        except ValueError:
            needed = "a number" if field.kind == "number" else "JSON"
            problems.append(f"{field.name}: {text[:80]!r} is not {needed}")
    return document, problems
