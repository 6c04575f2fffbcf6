"""Authentication and authorisation: by API token, by the identity provider's token, or by a browser's session.

Sessions are in cookies: for the server only, and over HTTPS under names that nobody else can set.
"""

import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Final
from urllib.parse import urlsplit

from fastapi import Depends, Query, Request, Response

from redrive.access import Principal, Right, Role
from redrive.console.app_state import AppState, app_state_of
from redrive.console.problems import Place, Refusal
from redrive.contracts import NAME_PATTERN
from redrive.postgres.tenancy import QUARANTINE
from redrive.store.access import PREFIX, member_principal, session_principal, token_principal

SESSION: Final = "redrive_session"
FLOW: Final = "redrive_flow"
# The tenant that an owner looks at: a choice, not a right.
TENANT: Final = "redrive_tenant"
_HOST_ONLY: Final = "__Host-"
CSRF_HEADER: Final = "X-CSRF-Token"
_ASKED: Final = "redrive.principal"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
_BEARER: Final = {"WWW-Authenticate": "Bearer"}
_SIGN_IN: Final = "send Authorization: Bearer with a token of `redrive tokens create`, or sign in at /sign-in"


def cookie_name(app_state: AppState, name: str) -> str:
    """Return the name of a cookie in the browser."""
    return f"{_HOST_ONLY}{name}" if app_state.https else name


def read_cookie(app_state: AppState, request: Request, name: str) -> str | None:
    """Return a cookie; None if there are two of the name, because then somebody else has set one of them."""
    wanted = cookie_name(app_state, name)
    pairs = (part.partition("=") for header in request.headers.getlist("cookie") for part in header.split(";"))
    if sum(given.strip() == wanted for given, _, _ in pairs) > 1:
        return None
    return request.cookies.get(wanted)


def set_cookie(app_state: AppState, answer: Response, name: str, value: str, *, lasts: int) -> None:
    """Set a cookie for some seconds."""
    answer.set_cookie(
        cookie_name(app_state, name), value, max_age=lasts, httponly=True, samesite="lax", secure=app_state.https
    )


def drop_cookie(app_state: AppState, answer: Response, name: str) -> None:
    """Delete a cookie."""
    answer.delete_cookie(cookie_name(app_state, name), httponly=True, samesite="lax", secure=app_state.https)


async def principal(request: Request) -> Principal:
    """Return the caller, or refuse with 401. Checked once a request: before its body is read, if it has one."""
    known: Principal | None = request.scope.get(_ASKED)
    if known is None:
        known = request.scope[_ASKED] = await _principal(request)
    return known


async def _principal(request: Request) -> Principal:
    app_state = app_state_of(request)
    found = await identified(request)
    await app_state.limiter.check(found.id)
    if not _credentials(request)[0] and request.method not in _SAFE:
        check_origin(app_state, request)
        check_csrf(read_cookie(app_state, request, SESSION) or "", request.headers.get(CSRF_HEADER, ""))
    return found


async def identified(request: Request) -> Principal:
    """Return the caller, or refuse with 401, without counting known callers."""
    app_state = app_state_of(request)
    scheme, secret = _credentials(request)
    if not scheme:
        return await _signed_in(app_state, request)
    async with app_state.strangers.asking(request, f"{scheme} {secret}"):
        return await _bearer(app_state, scheme, secret)


async def _signed_in(app_state: AppState, request: Request) -> Principal:
    secret = read_cookie(app_state, request, SESSION) or ""
    async with app_state.strangers.asking(request, secret):
        return await _session(app_state, secret)


def _credentials(request: Request) -> tuple[str, str]:
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    return scheme, secret.strip()


async def _bearer(app_state: AppState, scheme: str, secret: str) -> Principal:
    if scheme.lower() != "bearer" or not secret:
        raise unauthorized("header.Authorization: only `Bearer TOKEN` is understood")
    if app_state.provider and not secret.startswith(PREFIX):
        return await _member(app_state, await app_state.provider.subject(secret))
    found = await token_principal(await app_state.access(), secret)
    if found is None:
        raise unauthorized("header.Authorization: no such token, or it expired or was revoked")
    return found


async def _member(app_state: AppState, subject: str) -> Principal:
    found = await member_principal(await app_state.access(), subject)
    if found is None:
        raise no_membership(subject)
    return found


def no_membership(subject: str) -> Refusal:
    """Refuse somebody whom the identity provider knows and we do not."""
    return Refusal(
        403,
        "no_membership",
        f"{subject} is not an active member of any organisation here",
        "ask an owner to run `redrive members put`",
    )


async def _session(app_state: AppState, secret: str) -> Principal:
    if not secret:
        raise unauthorized("nobody is signed in")
    found = await session_principal(await app_state.access(), secret)
    if found is None:
        raise unauthorized("the session is over")
    return found


def unauthorized(detail: str) -> Refusal:
    """Refuse an unknown caller."""
    return Refusal(401, "unauthorized", detail, _SIGN_IN, headers=_BEARER)


def chosen_tenant(app_state: AppState, request: Request) -> str | None:
    """Return the tenant that an owner's browser has chosen; None: all."""
    name = read_cookie(app_state, request, TENANT)
    return name if name and re.fullmatch(NAME_PATTERN, name) else None


def csrf_token(session: str) -> str:
    """Return the session's CSRF token: a page sends it with each change, and no other site can know it."""
    return hashlib.sha256(f"csrf:{session}".encode()).hexdigest()


def check_csrf(session: str, given: str) -> None:
    """Refuse a change that does not come from a page of this session."""
    if not hmac.compare_digest(csrf_token(session).encode(), given.encode()):
        raise Refusal(
            403,
            "csrf",
            f"header.{CSRF_HEADER}: missing, or not the one of this session",
            "reload the page and try again; programs send a token in Authorization instead of a cookie",
        )


def check_origin(app_state: AppState, request: Request) -> None:
    """Refuse a change that a browser sends from another site."""
    origin = request.headers.get("origin")
    own = urlsplit(app_state.settings.console_url or str(request.base_url))
    foreign = origin is not None and origin != f"{own.scheme}://{own.netloc}"
    if foreign or request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        raise Refusal(403, "foreign_origin", "the request comes from a page of another site", "use the console's pages")


def check_host(app_state: AppState, request: Request) -> None:
    """Refuse a request under a host name that is not the console's: any site can point its own name here."""
    given = request.headers.get("host", "")
    public = urlsplit(app_state.settings.console_url or "").netloc
    own = {*_LOOPBACK, app_state.settings.console_address.rpartition(":")[0]}
    if given != public if public else given.rpartition(":")[0] not in own:
        raise Refusal(
            421, "foreign_host", f"header.Host: {given[:80]!r} is not this console", "set REDRIVE_CONSOLE_URL to it"
        )


async def signed_in_owner(request: Request) -> Principal:
    """Return the owner whose browser asks. The Web UI has no CSRF token: a change must send our origin instead."""
    app_state = app_state_of(request)
    check_host(app_state, request)
    found = await _signed_in(app_state, request)
    await app_state.limiter.check(found.id)
    if found.role is not Role.OWNER:
        raise Refusal(403, "forbidden", f"{found.name} is {found.role.value}: this shows all tenants", "ask an owner")
    if request.method not in _SAFE:
        if "origin" not in request.headers:
            raise Refusal(403, "foreign_origin", "header.Origin: a change must say where it is from", "use a browser")
        check_origin(app_state, request)
    return found


def needs(*rights: Right) -> Callable[..., Awaitable[Principal]]:
    """Return the dependency of a route that needs these rights."""

    async def check(caller: Annotated[Principal, Depends(principal)]) -> Principal:
        missing = [right for right in rights if not caller.may(right)]
        if missing:
            raise Refusal(
                403,
                "forbidden",
                f"{caller.name} is {caller.role.value} and lacks the permission {missing[0].value!r}",
                "ask an admin of your organisation",
            )
        return caller

    return check


Caller = Annotated[Principal, Depends(principal)]


Reader = Annotated[Principal, Depends(needs(Right.READ))]


Starter = Annotated[Principal, Depends(needs(Right.START))]


PayloadReader = Annotated[Principal, Depends(needs(Right.READ, Right.PAYLOADS))]


Operator = Annotated[Principal, Depends(needs(Right.COMMAND))]


Keeper = Annotated[Principal, Depends(needs(Right.TOKENS))]


async def scope(
    request: Request,
    caller: Caller,
    tenant: Annotated[str | None, Query(pattern=NAME_PATTERN, description="for owners: only this tenant")] = None,
) -> str | None:
    """Return the tenant of a request: the principal's own; for an owner the one named, or all (None)."""
    if caller.tenant is None:
        return tenant
    if tenant not in {None, caller.tenant}:
        place = Place(place="query.tenant", problem="not yours")
        raise Refusal(
            403, "foreign_tenant", f"query.tenant: {tenant!r} is not your tenant", "leave it out", places=[place]
        )
    if request.method in _SAFE and not request.path_params:
        # A request without a single target is a list.
        await app_state_of(request).tenant_limits.list(caller.tenant)
    return caller.tenant


Scope = Annotated[str | None, Depends(scope)]


def broker_scope(
    caller: Caller,
    tenant: Scope,
    quarantined: Annotated[bool, Query(description="for owners: only what is in quarantine")] = False,
) -> str | None:
    """Return the tenant of a request about brokers' messages: its own, or the quarantine."""
    if not quarantined:
        return tenant
    if caller.tenant is not None:
        place = Place(place="query.quarantined", problem="for owners")
        raise Refusal(
            403,
            "owners_only",
            "query.quarantined: only owners see what is in quarantine",
            "leave it out",
            places=[place],
        )
    return QUARANTINE


BrokerScope = Annotated[str | None, Depends(broker_scope)]
