"""Refusals as `application/problem+json`: a stable code, a sentence, what to do, and the fields that are wrong.

Every error that leaves the API is made here, from the SDK's error tree or from a refusal of the framework.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import asyncpg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ExceptionHandler

from redrive.console.headers import ALWAYS
from redrive.errors import (
    ApprovalNotFound,
    BulkNotFound,
    BulkRefused,
    CommandRefused,
    EventNotFound,
    IdempotencyMismatch,
    InvalidInput,
    LetterNotFound,
    MessageNotFound,
    RedriveError,
    RunNotFound,
    SameApprover,
    ScheduleExists,
    ScheduleNotFound,
    TooLarge,
    Unavailable,
    UnknownPipeline,
    VersionChanged,
)
from redrive.levels import bounded, dotted
from redrive.logs import get_logger
from redrive.postgres.database import DRIVER_ERRORS, database_problem

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER: Final = 5
_PLACES_NAMED: Final = 10
_PROBLEM_SHOWN: Final = 500
_log = get_logger(__name__)


class Place(BaseModel):
    """Where in a request something is wrong."""

    place: str = Field(description="`body.reason`, `query.limit`, `header.If-Match`")
    problem: str


class Problem(BaseModel):
    """Why a request was refused."""

    type: str = Field(description="the code as a URN")
    title: str
    status: int
    code: str = Field(description="stable: programs may decide by it")
    detail: str = Field(description="what is wrong, with the value")
    action: str = Field(description="what to do about it")
    places: list[Place] = []


class Refusal(RedriveError):
    """A request that is refused, with all that the answer needs."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        action: str,
        *,
        places: Sequence[Place] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.problem = Problem(
            type=f"urn:redrive:problem:{code}",
            title=HTTPStatus(status).phrase,
            status=status,
            code=code,
            detail=detail,
            action=action,
            places=list(places),
        )
        self.headers = dict(headers or {})


# How the SDK's errors, and their subclasses, are answered: the status, and what to do. The sentence is the error's own.
_ANSWERS: Final[dict[type[RedriveError], tuple[int, str]]] = {
    InvalidInput: (400, "correct the request; nothing was changed"),
    UnknownPipeline: (422, "take a pipeline that GET /api/v1/modules lists"),
    TooLarge: (413, "send less, or a reference to the data"),
    IdempotencyMismatch: (422, "take another Idempotency-Key for another request"),
    RunNotFound: (404, "look the id up with GET /api/v1/runs"),
    BulkNotFound: (404, "look the id up with GET /api/v1/bulk"),
    ScheduleNotFound: (404, "look the name up with GET /api/v1/schedules"),
    ScheduleExists: (409, "delete it first, or take another name"),
    ApprovalNotFound: (404, "look for it with GET /api/v1/approvals, or ask again"),
    SameApprover: (409, "ask another admin"),
    BulkRefused: (409, "make a plan again, then decide; nothing was changed"),
    CommandRefused: (409, "nothing was changed"),
    LetterNotFound: (
        404,
        "look it up in the list of dead letters, by a run id or a key also: GET /api/v1/workflow-dlq",
    ),
    EventNotFound: (404, "look it up in the list of events: GET /api/v1/stored-events, GET /api/v1/dead-events"),
    MessageNotFound: (404, "look it up in the list of messages: GET /api/v1/dead-messages"),
    VersionChanged: (412, "look at it again, then decide"),
    Unavailable: (503, "try again; with the same key or request id it is done once"),
    RedriveError: (500, "tell the operators of this console"),
}
# Not a database problem but a bug of ours.
_MISTAKES: Final = (asyncpg.SyntaxOrAccessError, asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)
_BY_STATUS: Final = {
    404: ("not_found", "GET /api/v1/openapi.json lists what there is"),
    405: ("method_not_allowed", "take a method that the header Allow names"),
}


def answer_to(kind: type[RedriveError]) -> tuple[int, str]:
    """Return the status that an error of the SDK is answered with, and what to do about it."""
    return next(_ANSWERS[each] for each in kind.__mro__ if each in _ANSWERS)


def refusal_of(error: RedriveError) -> Refusal:
    """Turn an error of the SDK into an answer."""
    if isinstance(error, Refusal):
        return error
    status, action = answer_to(type(error))
    if isinstance(error, VersionChanged):
        place = Place(place="header.If-Match", problem=f"the record is at version {error.version}")
        tag = {"ETag": f'"{error.version}"'}
        return Refusal(status, error.code, str(error), action, places=[place], headers=tag)
    headers = {"Retry-After": str(RETRY_AFTER)} if status == 503 else None
    return Refusal(status, error.code, str(error), action, headers=headers)


def respond(refusal: Refusal) -> Response:
    """Return the answer."""
    return Response(
        refusal.problem.model_dump_json(exclude_defaults=False),
        status_code=refusal.problem.status,
        headers=refusal.headers,
        media_type=MEDIA_TYPE,
    )


def unacceptable(places: Sequence[Place]) -> Refusal:
    """Refuse a request whose fields do not fit."""
    sentence = "; ".join(f"{place.place}: {place.problem}" for place in places)
    return Refusal(422, "invalid_request", sentence, "correct these places; nothing was changed", places=places)


async def _on_redrive_error(_request: Request, error: Exception) -> Response:
    return respond(refusal_of(error) if isinstance(error, RedriveError) else _unexpected(error))


async def _on_validation(_request: Request, error: Exception) -> Response:
    return respond(validation_refusal(error))


def validation_refusal(error: Exception) -> Refusal:
    """List the fields of a request that do not fit."""
    problems: Sequence[Any] = error.errors() if isinstance(error, RequestValidationError) else []
    return unacceptable([_place(problem) for problem in problems[:_PLACES_NAMED]])


def _place(problem: Mapping[str, Any]) -> Place:
    place = dotted([str(part) for part in problem["loc"]])
    return Place(place=place.encode("utf-8", "replace").decode(), problem=bounded(problem["msg"], _PROBLEM_SHOWN))


async def _on_http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        return respond(_unexpected(error))
    code, action = _BY_STATUS.get(error.status_code, ("refused", "correct the request"))
    headers = dict(error.headers or {})
    if error.status_code == 405:
        # The framework names the methods of one route; several may share a path.
        headers["Allow"] = ", ".join(sorted(_methods(request)))
    return respond(Refusal(error.status_code, code, str(error.detail), action, headers=headers))


def _methods(request: Request) -> set[str]:
    return {
        method
        for route in iter_route_contexts(request.app.routes)
        if route.path and compile_path(route.path)[0].match(request.url.path)
        for method in route.methods or ()
    }


async def _on_database_error(_request: Request, error: Exception) -> Response:
    return respond(database_refusal(error))


def database_refusal(error: Exception) -> Refusal:
    """Distinguish an unavailable database from a bug of ours."""
    schema_is_old = isinstance(error, asyncpg.UndefinedTableError | asyncpg.UndefinedFunctionError)
    if isinstance(error, _MISTAKES) and not schema_is_old:
        return _unexpected(error)
    _log.warning("console.database_failed", error_type=type(error).__name__, error=str(error))
    return refusal_of(Unavailable(database_problem(error)))


async def _on_bug(_request: Request, error: Exception) -> Response:
    answer = respond(_unexpected(error))
    # Built outside of the middleware that adds these to every other answer.
    answer.headers.update(ALWAYS | {"cache-control": "no-store"})
    return answer


def _unexpected(error: Exception) -> Refusal:
    # Its text may hold anything: it goes to the log, which redacts, and not to the caller.
    _log.error("console.failed", exc_info=error)
    return Refusal(
        500, "internal_error", "this request met an error of ours", "tell the operators of this installation"
    )


def handle_errors(app: FastAPI) -> None:
    """Answer every error as a problem."""
    handlers: dict[type[Exception], ExceptionHandler] = {
        RedriveError: _on_redrive_error,
        RequestValidationError: _on_validation,
        HTTPException: _on_http_error,
        **dict.fromkeys(DRIVER_ERRORS, _on_database_error),
        Exception: _on_bug,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)
