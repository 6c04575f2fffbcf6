"""The audit log: who did what, and why."""

from typing import Final

from fastapi import Request, Response
from pydantic import BaseModel

from console.desk import TheDesk
from console.security import Reader, Scope
from console.web.render import show
from console.web.routes import page_router, query_of, read_query
from store.audit_lists import AuditFilter, audit_page

router = page_router()
PAGE: Final = 100


class AuditAsked(BaseModel):
    """Which lines an address asks for."""

    dead_letter: str | None = None
    cursor: str | None = None


@router.get("/audit")
async def audit(request: Request, desk: TheDesk, caller: Reader, tenant: Scope) -> Response:
    """Show what was done, the newest first."""
    asked = read_query(AuditAsked, request)
    chosen = AuditFilter(tenant=tenant, dead_letter=asked.dead_letter)
    page = await audit_page(await desk.pool(), chosen, PAGE, asked.cursor)
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
