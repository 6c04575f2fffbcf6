"""What brokers gave: dead events and dead messages with their commands, and stored events with their projectors."""

import asyncio
from typing import Any, Final, Literal
from urllib.parse import parse_qs

from fastapi import Request, Response
from pydantic import BaseModel
from pydantic_core import from_json

from redrive.access import Principal, Right
from redrive.console.api.broker_records import FoundEvent, FoundMessage, FoundStored, event_payload, story
from redrive.console.app_state import TheAppState
from redrive.console.authentication import BrokerScope, Operator, Reader, Scope, broker_scope
from redrive.console.message_contents import Content, Encoding
from redrive.console.web.edits import Check, check_input
from redrive.console.web.render import show
from redrive.console.web.routes import list_url, page_router, query_of, read_query
from redrive.dead_letters import LetterId
from redrive.postgres.paging import Page
from redrive.redaction.redactor import MARK
from redrive.store.dead_letters.lists import audit_trail
from redrive.store.events.dead import DeadEventFilter, DeadEventStatus, list_dead_events
from redrive.store.events.records import EventFilter, list_events, projections_of
from redrive.store.messages.dead import MessageFilter, MessageStatus, list_dead

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


class MessagesQuery(BaseModel):
    """The query of the dead messages' page."""

    status: MessageStatus | Literal["all"] = MessageStatus.PENDING
    queue: str | None = None
    quarantined: bool = False
    cursor: str | None = None

    def filter(self, tenant: str | None) -> MessageFilter:
        """Return the store's filter."""
        status = None if self.status == "all" else self.status
        return MessageFilter(tenant=tenant, status=status, queue=self.queue)


@router.get("/events")
async def events(request: Request, app_state: TheAppState, caller: Reader, tenant: Scope) -> Response:
    """Show messages that could not become a run, or events, the newest first."""
    asked, pool = read_query(EventsQuery, request), await app_state.pool()
    if asked.view in {"dead", "quarantine"}:
        whose = broker_scope(caller, tenant, quarantined=asked.view == "quarantine")
        dead = await list_dead_events(pool, asked.dead(whose), PAGE, asked.cursor)
        return _list(request, caller, "dead_events.html", asked, dead)
    return _list(
        request, caller, "events.html", asked, await list_events(pool, asked.stored(tenant), PAGE, asked.cursor)
    )


@router.get("/messages")
async def messages(request: Request, app_state: TheAppState, caller: Reader, tenant: BrokerScope) -> Response:
    """Show dead messages, the newest failure first."""
    asked = read_query(MessagesQuery, request)
    page = await list_dead(await app_state.pool(), asked.filter(tenant), PAGE, asked.cursor)
    return _list(request, caller, "messages.html", asked, page)


def _list(request: Request, caller: Principal, template: str, asked: BaseModel, page: Page[Any]) -> Response:
    return show(
        request,
        caller,
        template,
        asked=asked,
        rows=page.rows,
        older=page.cursor,
        query=query_of(request),
        # Dead events and dead messages have the same ones.
        statuses=list(DeadEventStatus),
        url=list_url(request),
    )


@router.get("/events/dead/{dead_id}")
async def dead_event(request: Request, app_state: TheAppState, caller: Reader, record: FoundEvent) -> Response:
    """Show one dead event: why it could not become a run, the message, its history, and the possible commands."""
    told = await story(app_state, caller, record)
    can_edit = not app_state.settings.approvals and record.full_size is None
    editable = editable_text(told.payload) if can_edit else None
    return show(request, caller, "dead_event.html", record=record, story=told, editable=editable)


@router.post("/events/dead/{dead_id}/plan")
async def edit_plan(request: Request, app_state: TheAppState, caller: Operator, record: FoundEvent) -> Response:
    """Show what an edited message changes. Values that stay redacted are not part of the edit."""
    given = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=10).get("edited", [None])[0]
    shown = document_of((await story(app_state, caller, record)).payload)
    check, written = Check(), None
    if given is not None and shown is not None:
        check = await asyncio.to_thread(check_input, shown, given, None)
    elif given is not None and caller.may(Right.PAYLOADS):
        is_covered = MARK in given
        problems = [f"{MARK} would take the place of true values; write them out"] if is_covered else []
        check, written = Check(problems=problems, can_be_sent=not is_covered), None if is_covered else given
    return show(request, caller, "message_plan.html", check=check, written=written, is_edited=given is not None)


def editable_text(carried: Content | None) -> str | None:
    """Return the text of a message that can be edited: all of it is shown, and it is text."""
    whole = carried is not None and carried.encoding is Encoding.TEXT and not carried.is_cut
    return carried.text if carried is not None and whole else None


def document_of(carried: Content | None) -> dict[str, Any] | None:
    """Return the JSON object that a message is, as it is shown; None: it is none."""
    try:
        document = from_json(editable_text(carried) or "")
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


@router.get("/messages/{message_id}")
async def message(request: Request, app_state: TheAppState, caller: Reader, record: FoundMessage) -> Response:
    """Show one dead message: its cause, its content, its history, and the possible commands."""
    return show(request, caller, "dead_message.html", record=record, story=await story(app_state, caller, record))


@router.get("/events/{event_id}")
async def event(request: Request, app_state: TheAppState, caller: Reader, record: FoundStored) -> Response:
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
        payload=await event_payload(app_state, caller, record),
        trail=await audit_trail(pool, record.tenant, record.id),
        links=app_state.links(caller, run=record.run_id),
    )
