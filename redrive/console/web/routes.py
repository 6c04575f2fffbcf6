"""What all pages share: authentication, and how a refusal is shown to a person."""

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from redrive.console.app_state import app_state_of
from redrive.console.authentication import chosen_tenant, principal
from redrive.console.problems import Problem, Refusal, database_refusal, refusal_of, respond, validation_refusal
from redrive.console.web.render import LISTS, show
from redrive.documents import validation_sentence
from redrive.errors import InvalidInput, RedriveError
from redrive.postgres.database import DRIVER_ERRORS

SIGN_IN: Final = "/sign-in"
Asked = TypeVar("Asked", bound=BaseModel)
KNOWN: Final = (RedriveError, RequestValidationError, *DRIVER_ERRORS)


class PageRoute(APIRoute):
    """A route that answers refusals with a page, and sends strangers to the sign-in."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with its errors turned into pages."""
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await _to_chosen_tenant(request) or await handler(request)
            except KNOWN as error:
                if not _is_for_browser(request):
                    raise
                return await refused(request, _refusal(error))

        return answer


async def _to_chosen_tenant(request: Request) -> Response | None:
    """Send an owner who goes to a list to the part of it that they have chosen: the tenant is in the address.

    A page that is open stays what it is: only where the browser itself goes to an address is it changed.
    """
    is_visit = request.headers.get("sec-fetch-mode") == "navigate" and request.method == "GET"
    tenant = chosen_tenant(app_state_of(request), request)
    if not is_visit or tenant is None or request.url.path not in LISTS or "tenant" in request.query_params:
        return None
    if (await principal(request)).tenant is not None:
        return None
    return RedirectResponse(str(request.url.include_query_params(tenant=tenant).replace(scheme="", netloc="")), 303)


def page_router() -> APIRouter:
    """Return a router for pages."""
    return APIRouter(route_class=PageRoute, include_in_schema=False)


async def answer_refusal(request: Request, error: Exception) -> Response:
    """Answer a request that was refused before its route: a page's with a page, a program's with a problem."""
    is_page = not request.scope["path"].startswith("/api/") and _is_for_browser(request)
    return await refused(request, _refusal(error)) if is_page else respond(_refusal(error))


def _is_for_browser(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "") or "hx-request" in request.headers


async def refused(request: Request, refusal: Refusal) -> Response:
    """Show why a page is refused; without a session, redirect to the sign-in and back."""
    problem = refusal.problem
    if problem.status == 401 and request.url.path.startswith(SIGN_IN):
        return sign_in_page(request, problem=problem)
    if problem.status == 401:
        return _to_sign_in(request)
    try:
        caller = await principal(request) if request.method == "GET" else None
    except (RedriveError, *DRIVER_ERRORS):
        caller = None
    answer = show(request, caller, "problem.html", problem.status, problem=problem)
    answer.headers.update(refusal.headers)
    return answer


def sign_in_page(request: Request, following: str = "/", problem: Problem | None = None) -> Response:
    """Show the sign-in page, with why the last attempt failed."""
    return show(
        request,
        None,
        "sign_in.html",
        problem.status if problem else 200,
        problem=problem,
        following=following,
        has_provider=app_state_of(request).settings.oidc is not None,
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
    """Return the query parameters. A form also sends its empty fields: they are ignored."""
    return {name: value for name, value in request.query_params.items() if value}


def list_url(request: Request) -> Callable[..., str]:
    """Return a function that builds the address of the same list with some fields changed; None removes one."""
    now = query_of(request)

    def url(**changes: object) -> str:
        fields = {name: value for name, value in now.items() if name != "cursor"} | changes
        words = urlencode({name: value for name, value in fields.items() if value is not None})
        return f"{request.url.path}?{words}" if words else request.url.path

    return url


_SPANS: Final = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7)}


def moment(value: object) -> object:
    """Return the moment that a time span before now begins with; anything else as it is."""
    return datetime.now(UTC) - _SPANS[value] if isinstance(value, str) and value in _SPANS else value


def read_query(kind: type[Asked], request: Request) -> Asked:
    """Read a query, or refuse it naming the parameter that does not fit."""
    try:
        return kind.model_validate(query_of(request))
    except ValidationError as error:
        raise InvalidInput(validation_sentence(error)) from None
