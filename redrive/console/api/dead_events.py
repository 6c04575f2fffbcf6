"""`/dead-events`: messages of Redis Streams that could not become a run, and commands to them."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from redrive.access import Principal, Right
from redrive.console.api.answers import AssigningBody, CommandBody, Listed, Versions, accepted, etag, identity, refusals
from redrive.console.app_state import AppState, TheAppState
from redrive.console.authentication import BrokerScope, Operator, Reader
from redrive.console.message_contents import READ, Content, content
from redrive.contracts import NAME_PATTERN, Message
from redrive.dead_letters import Answer, Discard, Replay
from redrive.errors import EventNotFound
from redrive.postgres.paging import LARGEST_PAGE
from redrive.store.dead_letters.lists import audit_trail
from redrive.store.dead_letters.models import AuditEntry
from redrive.store.events import commands as dead_event_commands
from redrive.store.events.dead import (
    DeadEvent,
    DeadEventFilter,
    DeadEventStatus,
    get_dead_event,
    list_dead_events,
    message_of,
)

router = APIRouter(prefix="/dead-events", tags=["events from brokers"])
_REFUSALS = refusals(400, 404, 409, 412, 413, 415)


class DeadEventPage(Message):
    """Which dead events, and which page of them."""

    tenant: str | None = Field(default=None, pattern=NAME_PATTERN, description="for owners: only this tenant")
    status: DeadEventStatus | None = None
    stream: str | None = Field(default=None, description="only those that came from this stream")
    quarantined: bool = Field(default=False, description="for owners: only those that have no tenant")
    limit: int = Field(default=50, ge=1, le=LARGEST_PAGE)
    cursor: str | None = None


class DeadEvents(Listed):
    """A page of dead events."""

    dead_events: list[DeadEvent]


class DeadEventDetail(DeadEvent):
    """A dead event with its history. The message is redacted, and only for those who may see payloads."""

    payload: Content | None
    payload_hidden: bool
    audit: list[AuditEntry]


@router.get("", responses=refusals(400))
async def dead_events(
    app_state: TheAppState, _caller: Reader, tenant: BrokerScope, choice: Annotated[DeadEventPage, Query()]
) -> DeadEvents:
    """List messages that could not become a run, the newest failure first."""
    chosen = DeadEventFilter(tenant=tenant, status=choice.status, source_stream=choice.stream)
    page = await list_dead_events(await app_state.pool(), chosen, choice.limit, choice.cursor)
    return DeadEvents(dead_events=page.rows, cursor=page.cursor)


async def find_dead_event(app_state: TheAppState, tenant: BrokerScope, dead_id: str) -> DeadEvent:
    """Return a dead event of this tenant; one of another tenant is not found."""
    record = await get_dead_event(await app_state.pool(), tenant, dead_id)
    if record is None:
        raise EventNotFound(f"no dead event of yours has the id {dead_id[:200]!r}")
    return record


Found = Annotated[DeadEvent, Depends(find_dead_event)]


@router.get("/{dead_id}", responses=refusals(404))
async def dead_event(app_state: TheAppState, caller: Reader, record: Found, response: Response) -> DeadEventDetail:
    """Show a dead event with its history. Its ETag is for a command's If-Match."""
    carried = await dead_event_content(app_state, caller, record)
    response.headers["ETag"] = etag(record.version)
    return DeadEventDetail(
        **dict(record),
        payload=carried,
        payload_hidden=carried is None,
        audit=await audit_trail(await app_state.pool(), record.tenant, record.id),
    )


@router.post("/{dead_id}/replay", status_code=202, responses=_REFUSALS)
async def replay(
    app_state: TheAppState, caller: Operator, record: Found, seen: Versions, wanted: AssigningBody
) -> Answer:
    """Try again to make a run of a stored message. 409: it still cannot become one."""
    command, replays = Replay(**identity(caller, wanted)), await app_state.event_replays()
    return accepted(await replays.dead_event(record.tenant, record.id, command, seen, assign_to=wanted.assign_to))


@router.post("/{dead_id}/ignore", status_code=202, responses=_REFUSALS)
@router.post("/{dead_id}/discard", status_code=202, responses=_REFUSALS)
async def discard(
    app_state: TheAppState, caller: Operator, record: Found, seen: Versions, wanted: CommandBody
) -> Answer:
    """Discard a message that could not become a run; its record stays. `ignore` is an alias."""
    command = Discard(**identity(caller, wanted))
    return accepted(await dead_event_commands.discard(await app_state.pool(), record, command, seen))


async def dead_event_content(app_state: AppState, caller: Principal, record: DeadEvent) -> Content | None:
    """Return the message, for those who may see payloads."""
    if not caller.may(Right.PAYLOADS):
        return None
    return content(await message_of(await app_state.pool(), record, READ + 1), app_state.redactor)
