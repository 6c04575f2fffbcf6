"""Events of Redis Streams: those that could not become a run, and those that did, with their projectors."""

from typing import Any, Final, Literal

from fastapi import Request, Response
from pydantic import BaseModel

from redrive.console.api import dead_events
from redrive.console.api import events as stored_events
from redrive.console.app_state import TheAppState
from redrive.console.authentication import Reader, Scope, broker_scope
from redrive.console.web.render import show
from redrive.console.web.routes import list_url, page_router, query_of, read_query
from redrive.dead_letters import LetterId
from redrive.store.dead_letters.lists import audit_trail
from redrive.store.events.dead import DeadEventFilter, DeadEventStatus, list_dead_events
from redrive.store.events.records import EventFilter, list_events, projections_of

router = page_router()
PAGE: Final = 50


class EventsQuery(BaseModel):
    """The query of the events' page."""

    view: Literal["dead", "quarantine", "failed", "all"] = "dead"
    status: DeadEventStatus | Literal["all"] = DeadEventStatus.PENDING
    stream: str | None = None
    type: str | None = None
    key: str | None = None
    cursor: str | None = None

    def dead(self, tenant: str | None) -> DeadEventFilter:
        """Return the store's filter of dead events."""
        status = None if self.status == "all" else self.status
        return DeadEventFilter(tenant=tenant, status=status, source_stream=self.stream)

    def stored(self, tenant: str | None) -> EventFilter:
        """Return the store's filter of events."""
        return EventFilter(tenant=tenant, type=self.type, dedupe_key=self.key, failed=self.view == "failed")


@router.get("/events")
async def events(request: Request, app_state: TheAppState, caller: Reader, tenant: Scope) -> Response:
    """Show messages that could not become a run, or events, the newest first."""
    asked, pool = read_query(EventsQuery, request), await app_state.pool()
    values: dict[str, Any] = {
        "asked": asked,
        "query": query_of(request),
        "statuses": list(DeadEventStatus),
        "url": list_url(request),
    }
    if asked.view in {"dead", "quarantine"}:
        whose = broker_scope(caller, tenant, quarantined=asked.view == "quarantine")
        dead = await list_dead_events(pool, asked.dead(whose), PAGE, asked.cursor)
        return show(request, caller, "dead_events.html", rows=dead.rows, older=dead.cursor, **values)
    page = await list_events(pool, asked.stored(tenant), PAGE, asked.cursor)
    return show(request, caller, "events.html", rows=page.rows, older=page.cursor, **values)


@router.get("/events/dead/{dead_id}")
async def dead_event(request: Request, app_state: TheAppState, caller: Reader, record: dead_events.Found) -> Response:
    """Show one dead event: why it could not become a run, the message, its history, and the possible commands."""
    return show(
        request,
        caller,
        "dead_event.html",
        event=record,
        content=await dead_events.dead_event_content(app_state, caller, record),
        trail=await audit_trail(await app_state.pool(), record.tenant, record.id),
    )


@router.get("/events/{event_id}")
async def event(request: Request, app_state: TheAppState, caller: Reader, record: stored_events.Found) -> Response:
    """Show one event with the outcomes of its projectors."""
    pool = await app_state.pool()
    records = await projections_of(pool, record.tenant, record.id)
    return show(
        request,
        caller,
        "event.html",
        event=record,
        projectors=[
            (each, LetterId(tenant=each.tenant, run_id=each.run_id, step=each.projector).workflow_id)
            for each in records
        ],
        payload=await stored_events.event_payload(app_state, caller, record),
        trail=await audit_trail(pool, record.tenant, record.id),
        links=app_state.links(run=record.run_id),
    )
