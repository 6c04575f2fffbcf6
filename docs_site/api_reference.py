"""The page of all requests of the HTTP API, made from its OpenAPI document."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from docs_site.tables import code, table
from redrive.console.app import build_app
from redrive.settings import Settings

Schema = Mapping[str, Any]
# A server is needed to answer requests, not to describe them.
_NOWHERE: Final = Settings(temporal_address="localhost:1", database_url="postgresql://localhost/nowhere")
_DEPTH: Final = 3


def openapi() -> Schema:
    """Return the API's own description."""
    return build_app(_NOWHERE).openapi()


def api() -> str:
    """Return every request, by what it is about."""
    document = openapi()
    parts = [
        "# HTTP API, all requests",
        str(document["info"]["description"]).strip(),
        "[The page by example](../docs/api.md) shows how to call it. A running console serves this as "
        "`/api/v1/openapi.json`. Any request may also be answered with 401, 403, 422, 429 or 503, as "
        "`application/problem+json` with a `code` of [these](errors.md).",
    ]
    for title, requests in _by_topic(document).items():
        parts += [f"## {title.capitalize()}", *requests]
    return "\n\n".join(parts) + "\n"


def _by_topic(document: Schema) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, request in methods.items():
            topic = next(iter(request.get("tags", ())), "other")
            found.setdefault(topic, []).append("\n\n".join(_request(document, f"{method.upper()} {path}", request)))
    return found


def _request(document: Schema, title: str, request: Schema) -> Iterator[str]:
    yield f"### {code(title)}"
    yield str(request.get("description", request.get("summary", "")))
    parameters = request.get("parameters", ())
    if parameters:
        rows = [(code(each["name"]), each["in"], _kind(each["schema"]), _meaning(each)) for each in parameters]
        yield table(("parameter", "in", "type", "meaning"), rows)
    for body in _schemas(request.get("requestBody", {})):
        yield f"Body: {_kind(body)}"
        yield from _fields(document, body)
    for body, statuses in _answers(request):
        yield f"Answer {' or '.join(statuses)}: {_kind(body)}"
        yield from _fields(document, body)


def _answers(request: Schema) -> list[tuple[Schema, list[str]]]:
    """Return what a request is answered with if nothing is wrong, each shape once."""
    found: list[tuple[Schema, list[str]]] = []
    for status, answer in request["responses"].items():
        for body in _schemas(answer) if status.startswith("2") else ():
            known = next((statuses for shape, statuses in found if shape == body), None)
            if known is None:
                found.append((body, [status]))
            else:
                known.append(status)
    return found


def _schemas(content: Schema) -> list[Schema]:
    return [each["schema"] for each in content.get("content", {}).values() if each.get("schema")]


def _fields(document: Schema, schema: Schema) -> Iterator[str]:
    rows = list(_rows(document, schema, "", _DEPTH))
    if rows:
        yield table(("field", "type", "meaning"), rows)


def _rows(document: Schema, schema: Schema, path: str, depth: int) -> Iterator[tuple[str, str, str]]:
    shape = _resolved(document, schema)
    if "items" in shape:
        yield from _rows(document, shape["items"], f"{path}[]", depth)
    required = shape.get("required", ())
    for name, field in shape.get("properties", {}).items():
        place = f"{path}.{name}" if path else name
        yield code(place), _kind(field) + ("" if name in required else ", optional"), _meaning(field)
        if depth:
            yield from _rows(document, field, place, depth - 1)


def _resolved(document: Schema, schema: Schema) -> Schema:
    reference = schema.get("$ref")
    return document["components"]["schemas"][reference.rpartition("/")[2]] if reference else schema


def _kind(schema: Schema) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(code(str(each)) for each in schema["enum"])
    if "items" in schema:
        return f"list of {_kind(schema['items'])}"
    return str(schema.get("format") or schema.get("type") or "anything")


def _meaning(schema: Schema) -> str:
    default = schema.get("default", schema.get("schema", {}).get("default"))
    told = [str(schema.get("description", ""))]
    if default not in (None, [], {}):
        told.append(f"default {code(str(default))}")
    return "; ".join(each for each in told if each)
