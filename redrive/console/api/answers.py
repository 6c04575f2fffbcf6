"""What the answers of the API share: versions, the bodies of commands, and the API's description (OpenAPI).

`ETag` and `If-Match` limit a command to the version of a record that the caller saw. The description has what the
framework lacks: how to sign in, and how refusals look.
"""

from typing import Annotated, Any, Final

from fastapi import Depends, FastAPI, Header
from fastapi.openapi.utils import get_openapi
from pydantic import Field

from redrive.access import Principal
from redrive.console.problems import MEDIA_TYPE, Problem, Refusal
from redrive.contracts import Message, Name, Text255
from redrive.dead_letters import Answer, Reason
from redrive.errors import CommandRefused
from redrive.keys import check_identifiers, new_request_id

PROBLEM: Final = {"$ref": "#/components/schemas/Problem"}
_INTRODUCTION: Final = """The operators' API of Redrive: runs, dead letters, commands.

Send `Authorization: Bearer TOKEN`. The tenant is the token's. Refusals are `application/problem+json` with a stable
`code`. A command with the same `request_id`, and a start with the same `Idempotency-Key`, is carried out once.
"""
IfMatch = Annotated[
    str | None, Header(alias="If-Match", description="the ETag of the record that was looked at; changed since: 412")
]


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


def etag(version: object) -> str:
    """Return the ETag of a version."""
    return f'"{version}"'


def versions(given: IfMatch = None) -> frozenset[str] | None:
    """Return the versions that a command is valid for; None: any."""
    tags = [tag.strip() for tag in (given or "*").split(",")]
    return None if "*" in tags else frozenset(tag.strip('"') for tag in tags)


Versions = Annotated[frozenset[str] | None, Depends(versions)]


_MEANINGS: Final = {
    400: "Not understood",
    401: "Nobody is signed in",
    403: "Not allowed",
    404: "Not there, or not yours",
    405: "Not with this method",
    409: "Not now",
    412: "Changed meanwhile",
    413: "Too large",
    415: "Not JSON",
    422: "Fields that do not fit",
    429: "Too often",
    503: "Something that is needed does not answer",
}


_EVERYWHERE: Final = (401, 403, 422, 429, 503)


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the refusals of a route for the schema: these, and those that every route has."""
    content = {MEDIA_TYPE: {"schema": PROBLEM}}
    return {status: {"description": _MEANINGS[status], "content": content} for status in {*_EVERYWHERE, *statuses}}


class Listed(Message):
    """What every list has."""

    cursor: str | None = Field(default=None, description="give it to get the next page; none: there are no more")


class CommandBody(Message):
    """What every command has. The caller is who gives it."""

    reason: Reason = Field(description="why; kept in the audit log")
    request_id: Text255 | None = Field(
        default=None, description="the same id again is the same command, carried out once and answered alike"
    )


class AssigningBody(CommandBody):
    """A command that may take its target out of quarantine."""

    assign_to: Name | None = Field(
        default=None, description="whose it is; needed for one that is in quarantine, which only owners see"
    )


def identity(caller: Principal, wanted: CommandBody) -> dict[str, str]:
    """Return who gives a command, why, and the id that makes repeated requests one command."""
    check_identifiers(request_id=wanted.request_id)
    request_id = wanted.request_id or new_request_id()
    return {"request_id": request_id, "requested_by": caller.name, "reason": wanted.reason}


def accepted(answer: Answer) -> Answer:
    """Return the answer to an accepted command, or refuse with its message."""
    if answer.accepted:
        return answer
    action = "POST …/restart starts a new run from the dead step" if answer.orphaned else "nothing was changed"
    raise Refusal(409, "run_gone" if answer.orphaned else CommandRefused.code, answer.message, action)
