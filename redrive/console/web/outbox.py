"""Rows of the outbox: a view of the events' page, and a page for each."""

from typing import Final, Literal

from fastapi import Request, Response
from pydantic import BaseModel

from redrive.console.api.outbox import FoundRow, row_payload, row_trail, rows_of
from redrive.console.app_state import TheAppState
from redrive.console.authentication import Reader, Scope
from redrive.console.web.render import show
from redrive.console.web.routes import list_url, page_router, query_of, read_query
from redrive.outbox.rows import OutboxFilter, OutboxStatus

router = page_router()
PAGE: Final = 50


class OutboxQuery(BaseModel):
    """The query of the outbox's list."""

    view: Literal["outbox"] = "outbox"
    status: OutboxStatus | Literal["all"] = "all"
    type: str | None = None
    key: str | None = None
    stream: None = None
    cursor: str | None = None

    def filter(self, tenant: str | None) -> OutboxFilter:
        """Return the filter of rows."""
        status = None if self.status == "all" else self.status
        return OutboxFilter(tenant=tenant, status=status, pipeline=self.type, key=self.key)


@router.get("/events/outbox")
async def outbox(request: Request, app_state: TheAppState, caller: Reader, tenant: Scope) -> Response:
    """Show rows of the outbox, the newest first."""
    asked = read_query(OutboxQuery, request)
    page = await rows_of(app_state, asked.filter(tenant), PAGE, asked.cursor)
    return show(
        request,
        caller,
        "outbox.html",
        asked=asked,
        rows=page.rows,
        older=page.cursor,
        query=query_of(request),
        statuses=list(OutboxStatus),
        url=list_url(request),
    )


@router.get("/events/outbox/{event_id}")
async def outbox_row(request: Request, app_state: TheAppState, caller: Reader, record: FoundRow) -> Response:
    """Show one row: where it is, its failed cycles, its payload, and its replay."""
    return show(
        request,
        caller,
        "outbox_row.html",
        row=record,
        payload=await row_payload(app_state, caller, record),
        trail=await row_trail(app_state, record),
        links=app_state.links(caller, run=record.run_id) if record.run_id else {},
    )
