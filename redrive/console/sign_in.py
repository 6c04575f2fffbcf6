"""Signing a browser in and out: with a token, with a one-time link, or through the identity provider.

Here an owner's browser also chooses the tenant that its pages are about.
The session's secret is in a cookie that no script can read and no other site can send with a change.
"""

import hmac
import re
import time
from typing import Annotated, Final
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from redrive.console.app_state import AppState, TheAppState
from redrive.console.authentication import (
    CSRF_HEADER,
    FLOW,
    SESSION,
    TENANT,
    check_csrf,
    check_origin,
    drop_cookie,
    identified,
    no_membership,
    read_cookie,
    set_cookie,
    unauthorized,
)
from redrive.console.oidc import FLOW_LASTS, Flow, Provider
from redrive.console.problems import Refusal
from redrive.console.web.routes import PageRoute, sign_in_page
from redrive.contracts import DEFAULT_TENANT, NAME_PATTERN
from redrive.store.access import close_session, open_link_session, open_member_session, open_token_session

router = APIRouter(tags=["signing in"], include_in_schema=False, route_class=PageRoute)
HOME: Final = "/"
SIGN_IN: Final = "/sign-in"
Next = Annotated[str, Query(alias="next")]


@router.get(SIGN_IN)
async def sign_in(request: Request, following: Next = HOME) -> Response:
    """Show the sign-in page."""
    return sign_in_page(request, local_path(following))


@router.post(SIGN_IN)
async def with_token(request: Request, app_state: TheAppState) -> Response:
    """Sign in with an API token, from a form with `token` and optionally `next`."""
    check_origin(app_state, request)
    form = parse_qs((await request.body()).decode("utf-8", "replace"))
    token, following = form.get("token", [""])[0].strip(), form.get("next", [HOME])[0]
    async with app_state.strangers.asking(request, token):
        session = await open_token_session(await app_state.access(), token, app_state.settings.session_lifetime)
        if session is None:
            raise unauthorized("no such token, or it expired or was revoked")
    return _signed_in(app_state, session, following)


@router.get(SIGN_IN + "/link/{secret}")
async def with_link(request: Request, app_state: TheAppState, secret: str) -> Response:
    """Sign in with a one-time link."""
    await app_state.strangers.count(request, "link")
    session = await open_link_session(await app_state.access(), secret, app_state.settings.session_lifetime)
    if session is None:
        raise unauthorized("the link was used already, or is too old; `redrive tokens link` makes another")
    return _signed_in(app_state, session, HOME)


@router.get(SIGN_IN + "/oidc")
async def to_provider(request: Request, app_state: TheAppState, following: Next = HOME) -> Response:
    """Send the browser to the identity provider."""
    flow = Flow.begun(local_path(following), time.time())
    answer = RedirectResponse(
        await _provider(app_state).authorization_url(flow, _callback(app_state, request)), status_code=303
    )
    set_cookie(app_state, answer, FLOW, flow.signed(await app_state.seal()), lasts=FLOW_LASTS)
    return answer


@router.get(SIGN_IN + "/callback")
async def from_provider(request: Request, app_state: TheAppState, code: str = "", state: str = "") -> Response:
    """Handle the browser's return from the identity provider."""
    flow = Flow.read(await app_state.seal(), read_cookie(app_state, request, FLOW) or "", time.time())
    if flow is None or not hmac.compare_digest(flow.state.encode(), state.encode()):
        raise unauthorized("this sign-in was not begun in this browser, or too long ago")
    if not code:
        raise unauthorized("the identity provider did not let you in")
    await app_state.strangers.count(request, "callback")
    subject = await _provider(app_state).exchange(code, flow, _callback(app_state, request))
    session = await open_member_session(await app_state.access(), subject, app_state.settings.session_lifetime)
    if session is None:
        raise no_membership(subject)
    answer = _signed_in(app_state, session, flow.following)
    drop_cookie(app_state, answer, FLOW)
    return answer


@router.post("/sign-out")
async def sign_out(request: Request, app_state: TheAppState) -> Response:
    """End the session."""
    session = read_cookie(app_state, request, SESSION)
    if session:
        await _checked_form(app_state, request, session)
        await close_session(await app_state.access(), session)
    answer = RedirectResponse(SIGN_IN, status_code=303)
    drop_cookie(app_state, answer, SESSION)
    drop_cookie(app_state, answer, TENANT)
    return answer


@router.post("/tenant")
async def choose_tenant(request: Request, app_state: TheAppState) -> Response:
    """Remember the tenant that an owner looks at, from a form with `tenant` (empty: all) and `next`."""
    session = read_cookie(app_state, request, SESSION) or ""
    form = await _checked_form(app_state, request, session)
    caller = await identified(request)
    tenant = form.get("tenant", [""])[0]
    if caller.tenant is not None or not re.fullmatch(NAME_PATTERN, tenant or DEFAULT_TENANT):
        raise Refusal(403, "foreign_tenant", f"tenant {tenant[:80]!r} is not yours to choose", "owners choose one")
    answer = RedirectResponse(_with_tenant(local_path(form.get("next", [HOME])[0]), tenant), status_code=303)
    if tenant:
        lasts = int(app_state.settings.session_lifetime.total_seconds())
        set_cookie(app_state, answer, TENANT, tenant, lasts=lasts)
    else:
        drop_cookie(app_state, answer, TENANT)
    return answer


def _with_tenant(address: str, tenant: str) -> str:
    """Return the address of a list with this tenant in place of another; its page begins again."""
    parts = urlsplit(address)
    fields = [(name, value) for name, value in parse_qsl(parts.query) if name not in {"tenant", "cursor"}]
    query = urlencode([*fields, ("tenant", tenant)] if tenant else fields)
    return f"{parts.path}?{query}" if query else parts.path


async def _checked_form(app_state: AppState, request: Request, session: str) -> dict[str, list[str]]:
    """Return the fields of a form that this session's page has sent."""
    check_origin(app_state, request)
    form = parse_qs((await request.body()).decode("utf-8", "replace"), keep_blank_values=True)
    check_csrf(session, request.headers.get(CSRF_HEADER) or form.get("csrf_token", [""])[0])
    return form


def local_path(text: str) -> str:
    """Return the text if it is a path of this console; otherwise the start page: a link must not lead elsewhere."""
    is_path = text.startswith("/") and not text.startswith("//") and "\\" not in text
    return text if is_path and text.isprintable() and text.isascii() and " " not in text else HOME


def _signed_in(app_state: AppState, session: str, following: str) -> Response:
    answer = RedirectResponse(local_path(following), status_code=303)
    set_cookie(app_state, answer, SESSION, session, lasts=int(app_state.settings.session_lifetime.total_seconds()))
    return answer


def _provider(app_state: AppState) -> Provider:
    if app_state.provider is None:
        raise Refusal(404, "no_provider", "this console has no identity provider", "sign in with a token")
    return app_state.provider


def _callback(app_state: AppState, request: Request) -> str:
    return f"{(app_state.settings.console_url or str(request.base_url)).rstrip('/')}{SIGN_IN}/callback"
