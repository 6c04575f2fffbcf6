"""The audit log, the API tokens of a tenant, and Temporal's Web UI for owners.

Tokens are created and revoked through the API.
"""

from typing import Annotated, Final
from urllib.parse import urlsplit

from fastapi import Depends, Request, Response
from pydantic import BaseModel, BeforeValidator

from redrive.access import Principal, Role
from redrive.console.api.access import newest_tokens
from redrive.console.app_state import TheAppState
from redrive.console.authentication import Keeper, Reader, Scope, signed_in_owner
from redrive.console.headers import WEB_UI_PATH
from redrive.console.problems import Refusal
from redrive.console.web.render import show
from redrive.console.web.routes import list_url, moment, page_router, query_of, read_query
from redrive.field_types import Moment
from redrive.store.access import made_with
from redrive.store.audit import Action, AuditFilter, audit_page
from redrive.store.runs import list_tenants

router = page_router()
PAGE: Final = 100
_TENANTS: Final = 1000
temporal_router = page_router()
_METHODS: Final = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
Owner = Annotated[Principal, Depends(signed_in_owner)]


class AuditQuery(BaseModel):
    """The query of the audit page."""

    dead_letter: str | None = None
    about: str | None = None
    actor: str | None = None
    action: Action | None = None
    since: Annotated[Moment | None, BeforeValidator(moment)] = None
    all: bool = False
    cursor: str | None = None

    def filter(self, tenant: str | None) -> AuditFilter:
        """Return the store's filter. What the system recorded itself is left out, unless it is asked for."""
        return AuditFilter(
            tenant=tenant,
            **self.model_dump(exclude={"all", "cursor"}),
            by_people=not (self.all or self.dead_letter or self.action),
        )


@router.get("/audit")
async def audit(request: Request, app_state: TheAppState, caller: Reader, tenant: Scope) -> Response:
    """Show the audit log, the newest entries first."""
    asked = read_query(AuditQuery, request)
    page = await audit_page(await app_state.pool(), asked.filter(tenant), PAGE, asked.cursor)
    again = {"since": asked.since.isoformat()} if asked.since else {}
    return show(
        request,
        caller,
        "audit.html",
        asked=asked,
        rows=page.rows,
        older=list_url(request)(cursor=page.cursor, **again) if page.cursor else None,
        query=query_of(request),
        actions=list(Action),
        tenant=tenant,
        url=list_url(request),
    )


@router.get("/tokens")
async def tokens(request: Request, app_state: TheAppState, caller: Keeper, tenant: Scope) -> Response:
    """Show tokens, the newest first."""
    found = await newest_tokens(app_state, tenant)
    roles = [role for role in Role if role is not Role.OWNER]
    below = {row.id: made_with(found.tokens, row.id) for row in found.tokens}
    return show(request, caller, "tokens.html", found=found, roles=roles, tenant=tenant, below=below)


@router.get("/tenants")
async def tenants(request: Request, app_state: TheAppState, caller: Reader) -> Response:
    """Return the choices of an owner's tenant picker."""
    if caller.tenant is not None:
        raise Refusal(403, "owners_only", "only owners see which tenants there are", "ask an owner")
    known = await list_tenants(await app_state.pool(), _TENANTS)
    return show(request, caller, "tenants.html", known=known)


@temporal_router.api_route(WEB_UI_PATH, methods=_METHODS)
@temporal_router.api_route(WEB_UI_PATH + "/{path:path}", methods=_METHODS)
async def web_ui(request: Request, app_state: TheAppState, _owner: Owner) -> Response:
    """Show a page of the Web UI, or one of its assets."""
    if app_state.web_ui is None:
        raise Refusal(404, "no_web_ui", "this console does not show Temporal's Web UI", "set REDRIVE_WEB_UI_PROXY")
    own = urlsplit(app_state.settings.console_url or str(request.base_url))
    return await app_state.web_ui.show(request, f"{own.scheme}://{own.netloc}")
