"""The audit log: who did what, and why."""

from typing import Final

from fastapi import Request, Response
from pydantic import BaseModel

from redrive.console.app_state import TheAppState
from redrive.console.authentication import Reader, Scope
from redrive.console.web.render import show
from redrive.console.web.routes import page_router, query_of, read_query
from redrive.store.audit.lists import AuditFilter, audit_page

router = page_router()
PAGE: Final = 100


class AuditQuery(BaseModel):
    """The query of the audit page."""

    dead_letter: str | None = None
    cursor: str | None = None


@router.get("/audit")
async def audit(request: Request, app_state: TheAppState, caller: Reader, tenant: Scope) -> Response:
    """Show the audit log, the newest entries first."""
    asked = read_query(AuditQuery, request)
    chosen = AuditFilter(tenant=tenant, dead_letter=asked.dead_letter)
    page = await audit_page(await app_state.pool(), chosen, PAGE, asked.cursor)
    return show(
        request,
        caller,
        "audit.html",
        asked=asked,
        rows=page.rows,
        older=page.cursor,
        query=query_of(request),
        tenant=tenant,
    )
