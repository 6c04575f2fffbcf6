"""The description of the API (OpenAPI), with what the framework lacks: how to sign in, and how refusals look."""

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from redrive.console.problems import Problem

PROBLEM: Final = {"$ref": "#/components/schemas/Problem"}
_INTRODUCTION: Final = """The operators' API of Redrive: runs, dead letters, commands.

Send `Authorization: Bearer TOKEN`. The tenant is the token's. Refusals are `application/problem+json` with a stable
`code`. A command with the same `request_id`, and a start with the same `Idempotency-Key`, is carried out once.
"""


def describe(app: FastAPI) -> None:
    """Make the application describe itself."""

    def described() -> dict[str, Any]:
        if not app.openapi_schema:
            app.openapi_schema = _schema(app)
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]  # the framework's own way to extend the description


def _schema(app: FastAPI) -> dict[str, Any]:
    schema = get_openapi(title=app.title, version=app.version, description=_INTRODUCTION, routes=app.routes)
    components = schema.setdefault("components", {})
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    components.setdefault("schemas", {}).update(problem.pop("$defs", {}), Problem=problem)
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    schema["security"] = [{"token": []}]
    _loosen(schema)
    return schema


def _loosen(value: Any) -> None:
    """Drop `format: duration`: it means RFC 3339's, which has no `PT0.25S`, and ours are ISO 8601's."""
    if isinstance(value, dict):
        if value.get("format") == "duration":
            del value["format"]
            value.setdefault("description", "a duration as in ISO 8601, `PT0.25S`")
        for item in value.values():
            _loosen(item)
    elif isinstance(value, list):
        for item in value:
            _loosen(item)
