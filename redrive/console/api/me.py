"""`/me`: who is asking."""

from fastapi import APIRouter, Request

from redrive.access import Right, Role
from redrive.console.api.answers import refusals
from redrive.console.app_state import app_state_of
from redrive.console.authentication import Caller, csrf_token
from redrive.console.cookies import SESSION, read_cookie
from redrive.contracts import Message

router = APIRouter(tags=["who"])


class Me(Message):
    """Who asks, and what they may."""

    id: str
    name: str
    role: Role
    tenant: str | None
    rights: list[Right]
    csrf_token: str | None


@router.get("/me", responses=refusals())
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
