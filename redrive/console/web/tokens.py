"""API tokens of a tenant: created and revoked through the API."""

from fastapi import Request, Response

from redrive.access import Role
from redrive.console.app_state import TheAppState
from redrive.console.authentication import Keeper, Scope
from redrive.console.web.render import show
from redrive.console.web.routes import page_router
from redrive.store.access.tokens import list_tokens, made_with

router = page_router()


@router.get("/tokens")
async def tokens(request: Request, app_state: TheAppState, caller: Keeper, tenant: Scope) -> Response:
    """Show tokens, the newest first."""
    rows = await list_tokens(await app_state.access(), tenant)
    roles = [role for role in Role if role is not Role.OWNER]
    below = {row.id: made_with(rows, row.id) for row in rows}
    return show(request, caller, "tokens.html", rows=rows, roles=roles, tenant=tenant, below=below)
