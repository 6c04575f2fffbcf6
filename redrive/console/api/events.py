"""`/stored-events`: events that became runs, the outcomes of their projectors, and replays."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from redrive.access import Principal, Right
from redrive.bridges.events.replays import Replayed
from redrive.console.api.answers import CommandBody, Listed, identity, refusals
from redrive.console.app_state import AppState, TheAppState
from redrive.console.authentication import Operator, Reader, Scope
from redrive.console.problems import Refusal
from redrive.contracts import NAME_PATTERN, Message, Name
from redrive.dead_letters import Replay
from redrive.errors import CommandRefused, EventNotFound
from redrive.moments import Moment
from redrive.postgres.paging import LARGEST_PAGE
from redrive.store.dead_letters.lists import audit_trail
from redrive.store.dead_letters.models import AuditEntry
from redrive.store.events.records import (
    EventFilter,
    EventRow,
    Projection,
    StoredEvent,
    get_event,
    list_events,
    projections_of,
)

router = APIRouter(prefix="/stored-events", tags=["events from brokers"])


class EventPage(Message):
    """Which events, and which page of them."""

    tenant: str | None = Field(default=None, pattern=NAME_PATTERN, description="for owners: only this tenant")
    type: str | None = None
    key: str | None = Field(default=None, description="only the one with this dedupe key")
    failed: bool = Field(default=False, description="only those with a projector that failed for good")
    since: Moment | None = Field(default=None, description="received since then")
    limit: int = Field(default=50, ge=1, le=LARGEST_PAGE)
    cursor: str | None = None


class Events(Listed):
    """A page of events."""

    events: list[EventRow]


class EventDetail(EventRow):
    """An event with its projectors. The payload is redacted, and only for those who may see payloads."""

    payload: dict[str, Any] | None
    payload_hidden: bool
    projectors: list[Projection]
    audit: list[AuditEntry]


class EventReplayBody(CommandBody):
    """Run projectors of an event again."""

    projectors: list[Name] = Field(
        default=[], max_length=100, description="only these; none: those that failed, or all when none failed"
    )


class EventAnswer(Message):
    """The outcome of a replay: one entry for each run that continues or starts."""

    request_id: str
    message: str
    replayed: list[Replayed]


@router.get("", responses=refusals(400))
async def events(
    app_state: TheAppState, _caller: Reader, tenant: Scope, choice: Annotated[EventPage, Query()]
) -> Events:
    """List stored events, the newest first."""
    chosen = EventFilter(
        tenant=tenant, type=choice.type, dedupe_key=choice.key, failed=choice.failed, since=choice.since
    )
    page = await list_events(await app_state.pool(), chosen, choice.limit, choice.cursor)
    return Events(events=page.rows, cursor=page.cursor)


async def find_event(app_state: TheAppState, tenant: Scope, event_id: str) -> StoredEvent:
    """Return an event of this tenant; one of another tenant is not found."""
    record = await get_event(await app_state.pool(), tenant, event_id)
    if record is None:
        raise EventNotFound(f"no event of yours has the id {event_id[:200]!r}")
    return record


Found = Annotated[StoredEvent, Depends(find_event)]


@router.get("/{event_id}", responses=refusals(404))
async def event(app_state: TheAppState, caller: Reader, record: Found) -> EventDetail:
    """Show an event and the outcomes of its projectors."""
    pool, payload = await app_state.pool(), await event_payload(app_state, caller, record)
    return EventDetail(
        **dict(record) | {"payload": payload},
        payload_hidden=payload is None,
        projectors=await projections_of(pool, record.tenant, record.id),
        audit=await audit_trail(pool, record.tenant, record.id),
    )


@router.post("/{event_id}/replay", status_code=202, responses=refusals(400, 404, 409, 413, 415))
async def replay(app_state: TheAppState, caller: Operator, record: Found, wanted: EventReplayBody) -> EventAnswer:
    """Run projectors again on the stored payload: parked ones in their own run, others in a new run of just these."""
    command = Replay(**identity(caller, wanted))
    done = await (await app_state.event_replays()).event(record.tenant, record.id, wanted.projectors, command)
    if not any(each.accepted for each in done):
        raise Refusal(409, CommandRefused.code, done[0].message, "nothing was changed")
    message = "; ".join(each.message for each in done)
    return EventAnswer(request_id=command.request_id, message=message, replayed=done)


async def event_payload(app_state: AppState, caller: Principal, record: StoredEvent) -> dict[str, Any] | None:
    """Return an event's payload, redacted, for those who may see payloads."""
    if not caller.may(Right.PAYLOADS):
        return None
    payload: dict[str, Any] = await app_state.redactor.value_aside(record.payload)
    return payload
