"""`/me` and `/tokens`: who is asking, and the API tokens of the caller's tenant.

Owners' tokens are created on the command line.
"""

from datetime import timedelta
from typing import Annotated, Final

from fastapi import APIRouter, Request
from pydantic import Field, StringConstraints

from redrive.access import Right, Role, granted
from redrive.console.api.answers import refusals
from redrive.console.app_state import AppState, TheAppState, app_state_of
from redrive.console.authentication import SESSION, Caller, Keeper, Scope, csrf_token, read_cookie
from redrive.console.problems import Refusal
from redrive.contracts import DEFAULT_TENANT, Message
from redrive.store.access import (
    BY_TOKEN,
    NewToken,
    RevokedToken,
    TokenRequest,
    TokenRow,
    create_token,
    get_token,
    list_tokens,
    revoke_token,
)

me_router = APIRouter(tags=["who"])
router = APIRouter(prefix="/tokens", tags=["tokens"])
MOST_TOKENS: Final = 200


class Me(Message):
    """Who asks, and what they may."""

    id: str
    name: str
    role: Role
    tenant: str | None
    rights: list[Right]
    csrf_token: str | None


@me_router.get("/me", responses=refusals())
async def me(caller: Caller, request: Request) -> Me:
    """Return who is asking: name, role, tenant (none: all) and rights; in a session also the CSRF token."""
    session = read_cookie(app_state_of(request), request, SESSION)
    by_cookie = session and "authorization" not in request.headers
    return Me(
        id=caller.id,
        name=caller.name,
        role=caller.role,
        tenant=caller.tenant,
        rights=sorted(right for right in caller.rights if caller.may(right)),
        csrf_token=csrf_token(session) if session and by_cookie else None,
    )


class Wanted(Message):
    """A token to create."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=100)] = Field(description="what it is for")
    role: Role
    rights: list[Right] | None = Field(default=None, description="none: all that the role has by itself")
    days: int = Field(default=90, ge=1, le=366, description="how long it lasts")


class Tokens(Message):
    """Tokens, without their secrets."""

    tokens: list[TokenRow]
    more: bool = Field(description="there are older ones, which are not here")


@router.get("", responses=refusals())
async def tokens(app_state: TheAppState, _caller: Keeper, tenant: Scope) -> Tokens:
    """List tokens, the newest first, including expired and revoked ones."""
    return await newest_tokens(app_state, tenant)


async def newest_tokens(app_state: AppState, tenant: str | None) -> Tokens:
    """Return as many tokens as one answer or page has."""
    rows = await list_tokens(await app_state.access(), tenant, MOST_TOKENS + 1)
    return Tokens(tokens=rows[:MOST_TOKENS], more=len(rows) > MOST_TOKENS)


@router.post("", status_code=201, responses=refusals(400, 413, 415))
async def create(app_state: TheAppState, caller: Keeper, tenant: Scope, wanted: Wanted) -> NewToken:
    """Create a token. Only this answer contains its secret. It can have no right that its creator lacks."""
    rights = granted(wanted.role, None if wanted.rights is None else frozenset(wanted.rights))
    beyond = sorted(right for right in rights if not caller.may(right))
    if beyond:
        raise Refusal(
            403, "forbidden", f"body.rights: {beyond[0]!r} is not yours to give", "give rights that you have yourself"
        )
    request = TokenRequest(
        name=wanted.name,
        role=wanted.role,
        tenant=tenant or DEFAULT_TENANT,
        created_by=caller.name,
        lasts=timedelta(days=wanted.days),
        rights=rights,
        person=caller.person,
        made_with=caller.id.removeprefix(BY_TOKEN) if caller.id.startswith(BY_TOKEN) else None,
    )
    return await create_token(await app_state.access(), request)


@router.post("/{token_id}/revoke", responses=refusals(400, 404, 413, 415))
async def revoke(app_state: TheAppState, caller: Keeper, tenant: Scope, token_id: str) -> RevokedToken:
    """Revoke a token and all that were created with it: their next requests are refused, and their sessions end.

    A beginning of its id that no other token of yours has is enough.
    """
    pool = await app_state.access()
    token = await get_token(pool, tenant, token_id)
    if token is not None and token.role is Role.OWNER:
        raise Refusal(403, "owner_token", f"token {token.id} is an owner's", "revoke it with `redrive tokens revoke`")
    row = await revoke_token(pool, token.tenant, token.id, caller.name) if token else None
    if row is None:
        raise Refusal(404, "token_not_found", f"no token of yours has the id {token_id[:80]!r}", "GET /api/v1/tokens")
    return row
