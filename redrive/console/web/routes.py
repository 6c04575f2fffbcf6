"""What all pages share: who looks at them, and how a refusal is shown to a person."""

from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import asyncpg
from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from redrive.console.app_state import desk_of
from redrive.console.authentication import principal
from redrive.console.problems import Problem, Refusal, database_refusal, refusal_of, respond, validation_refusal
from redrive.console.web.render import show
from redrive.documents import validation_sentence
from redrive.errors import InvalidInput, RedriveError

SIGN_IN: Final = "/sign-in"
_DATABASE: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)
Asked = TypeVar("Asked", bound=BaseModel)
KNOWN: Final = (RedriveError, RequestValidationError, *_DATABASE)


class PageRoute(APIRoute):
    """A route that answers a browser's refusals with a page, and strangers with the way to the sign-in."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with what it raises turned into a page."""
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except KNOWN as error:
                if not _is_for_browser(request):
                    raise
                return await refused(request, _refusal(error))

        return answer


def page_router() -> APIRouter:
    """Return a router for pages."""
    return APIRouter(route_class=PageRoute, include_in_schema=False)


async def answer_refusal(request: Request, error: Exception) -> Response:
    """Answer a request that was refused before it met its route: a page for a page's, a problem for a program's."""
    is_page = not request.scope["path"].startswith("/api/") and _is_for_browser(request)
    return await refused(request, _refusal(error)) if is_page else respond(_refusal(error))


def _is_for_browser(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "") or "hx-request" in request.headers


async def refused(request: Request, refusal: Refusal) -> Response:
    """Show why a page cannot be seen; without a session, lead to the sign-in and back."""
    problem = refusal.problem
    if problem.status == 401 and request.url.path.startswith(SIGN_IN):
        return sign_in_page(request, problem=problem)
    if problem.status == 401:
        return _to_sign_in(request)
    try:
        caller = await principal(request) if request.method == "GET" else None
    except (RedriveError, *_DATABASE):
        caller = None
    answer = show(request, caller, "problem.html", problem.status, problem=problem)
    answer.headers.update(refusal.headers)
    return answer


def sign_in_page(request: Request, following: str = "/", problem: Problem | None = None) -> Response:
    """Show the way in, with why the last try failed."""
    return show(
        request,
        None,
        "sign_in.html",
        problem.status if problem else 200,
        problem=problem,
        following=following,
        has_provider=desk_of(request).settings.oidc is not None,
    )


def _to_sign_in(request: Request) -> Response:
    if "hx-request" in request.headers:
        return Response(status_code=401, headers={"HX-Redirect": SIGN_IN})
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(SIGN_IN if wanted == "/" else f"{SIGN_IN}?next={quote(wanted, safe='')}", status_code=303)


def _refusal(error: Exception) -> Refusal:
    if isinstance(error, RedriveError):
        return refusal_of(error)
    return validation_refusal(error) if isinstance(error, RequestValidationError) else database_refusal(error)


def query_of(request: Request) -> dict[str, str]:
    """Return what an address asks for. A form sends the fields that were left empty, too: they ask for nothing."""
    return {name: value for name, value in request.query_params.items() if value}


def list_url(request: Request) -> Callable[..., str]:
    """Return a function that makes the address of the same list with some fields changed; None leaves one out."""
    now = query_of(request)

    def url(**changes: object) -> str:
        fields = {name: value for name, value in now.items() if name != "cursor"} | changes
        words = urlencode({name: value for name, value in fields.items() if value is not None})
        return f"{request.url.path}?{words}" if words else request.url.path

    return url


def read_query(kind: type[Asked], request: Request) -> Asked:
    """Read an address, or say which part of it does not fit."""
    try:
        return kind.model_validate(query_of(request))
    except ValidationError as error:
        raise InvalidInput(validation_sentence(error)) from None
