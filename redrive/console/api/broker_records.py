"""`/dead-events`, `/dead-messages`, `/stored-events`: what brokers gave, and commands to it.

Dead ones could not be handled. Stored events became runs: with the outcomes of their projectors, and replays.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field, StringConstraints

from redrive.access import Principal, Right
from redrive.bridges.events.replays import Replayed
from redrive.console.api.answers import AssigningBody, CommandBody, Listed, Versions, accepted, etag, identity, refusals
from redrive.console.app_state import AppState, TheAppState
from redrive.console.authentication import BrokerScope, Operator, Reader, Scope
from redrive.console.message_contents import READ, Content, content
from redrive.console.problems import Place, Refusal, unacceptable
from redrive.contracts import MIB, NAME_PATTERN, Message, Name
from redrive.dead_letters import Answer, Discard, Replay
from redrive.errors import CommandRefused, EventNotFound, MessageNotFound
from redrive.field_types import Moment
from redrive.postgres.paging import LARGEST_PAGE
from redrive.postgres.values import Record
from redrive.store.broker_records import whole_id
from redrive.store.dead_letters.lists import audit_trail
from redrive.store.dead_letters.models import AuditEntry
from redrive.store.events.dead import (
    DeadEvent,
    DeadEventFilter,
    DeadEventStatus,
    get_dead_event,
    list_dead_events,
    message_of,
)
from redrive.store.events.dead import discard as discard_event
from redrive.store.events.records import (
    EventFilter,
    EventRow,
    Projection,
    StoredEvent,
    get_event,
    list_events,
    projections_of,
)
from redrive.store.messages.dead import (
    DeadMessage,
    MessageFilter,
    MessageStatus,
    find_dead,
    give,
    list_dead,
    read_payload,
)
from redrive.store.messages.dead import whole_id as whole_message_id

router = APIRouter()
_events = APIRouter(prefix="/dead-events", tags=["events from brokers"])
_messages = APIRouter(prefix="/dead-messages", tags=["dead messages"])
Dead = DeadEvent | DeadMessage
_REFUSALS = refusals(400, 404, 409, 412, 413, 415)
event_router = APIRouter(prefix="/stored-events", tags=["events from brokers"])


class BrokerPage(Message):
    """Which page, and of which tenant."""

    tenant: str | None = Field(default=None, pattern=NAME_PATTERN, description="for owners: only this tenant")
    quarantined: bool = Field(default=False, description="for owners: only those that have no tenant")
    limit: int = Field(default=50, ge=1, le=LARGEST_PAGE)
    cursor: str | None = None


class DeadEventPage(BrokerPage):
    """Which dead events, and which page of them."""

    status: DeadEventStatus | None = None
    stream: str | None = Field(default=None, description="only those that came from this stream")


class MessagePage(BrokerPage):
    """Which dead messages, and which page of them."""

    status: MessageStatus | None = None
    queue: str | None = Field(default=None, description="only those that came from this queue")


class DeadEvents(Listed):
    """A page of dead events."""

    dead_events: list[DeadEvent]


class DeadMessages(Listed):
    """A page of dead messages."""

    dead_messages: list[DeadMessage]


class Story(Record):
    """What a record's page has besides the record."""

    payload: Content | None
    payload_hidden: bool
    audit: list[AuditEntry]


class DeadEventDetail(Story, DeadEvent):
    """A dead event with its history. The message is redacted, and only for those who may see payloads."""


class MessageDetail(Story, DeadMessage):
    """A dead message with its history. Its content is redacted, and only for those who may see payloads."""


async def find_dead_event(app_state: TheAppState, tenant: BrokerScope, dead_id: str) -> DeadEvent:
    """Return a dead event of this tenant; one of another tenant is not found."""
    pool = await app_state.pool()
    record = await get_dead_event(pool, tenant, await whole_id(pool, tenant, "dead_events", dead_id))
    if record is None:
        raise EventNotFound(f"no dead event of yours has the id {dead_id[:200]!r}")
    return record


async def find_message(app_state: TheAppState, tenant: BrokerScope, message_id: str) -> DeadMessage:
    """Return a dead message of this tenant; one of another tenant is not found."""
    pool = await app_state.pool()
    known = await whole_message_id(pool, tenant, message_id)
    found = await find_dead(pool, tenant, known) if known else []
    if not found:
        raise MessageNotFound(f"no dead message of yours has the id {message_id[:200]!r}")
    if len(found) > 1:
        raise unacceptable([Place(place="query.tenant", problem="more than one has a message of this id: name one")])
    return found[0]


FoundEvent = Annotated[DeadEvent, Depends(find_dead_event)]


FoundMessage = Annotated[DeadMessage, Depends(find_message)]


async def story(app_state: AppState, caller: Principal, record: Dead) -> Story:
    """Return the history of a record, and what the broker gave, for those who may see payloads."""
    pool, carried = await app_state.pool(), None
    if caller.may(Right.PAYLOADS):
        reads = (
            message_of(pool, record, READ + 1)
            if isinstance(record, DeadEvent)
            else read_payload(pool, record, READ + 1)
        )
        carried = content(await reads, app_state.redactor)
    return Story(
        payload=carried, payload_hidden=carried is None, audit=await audit_trail(pool, record.tenant, record.id)
    )


@_events.get("", responses=refusals(400))
async def dead_events(
    app_state: TheAppState, _caller: Reader, tenant: BrokerScope, choice: Annotated[DeadEventPage, Query()]
) -> DeadEvents:
    """List messages that could not become a run, the newest failure first."""
    chosen = DeadEventFilter(tenant=tenant, status=choice.status, source_stream=choice.stream)
    page = await list_dead_events(await app_state.pool(), chosen, choice.limit, choice.cursor)
    return DeadEvents(dead_events=page.rows, cursor=page.cursor)


@_messages.get("", responses=refusals(400))
async def dead_messages(
    app_state: TheAppState, _caller: Reader, tenant: BrokerScope, choice: Annotated[MessagePage, Query()]
) -> DeadMessages:
    """List dead messages, the newest failure first."""
    chosen = MessageFilter(tenant=tenant, status=choice.status, queue=choice.queue)
    page = await list_dead(await app_state.pool(), chosen, choice.limit, choice.cursor)
    return DeadMessages(dead_messages=page.rows, cursor=page.cursor)


@_events.get("/{dead_id}", responses=refusals(400, 404))
async def dead_event(app_state: TheAppState, caller: Reader, record: FoundEvent, response: Response) -> DeadEventDetail:
    """Show a dead event with its history. Its ETag is for a command's If-Match."""
    response.headers["ETag"] = etag(record.version)
    return DeadEventDetail(**dict(record), **dict(await story(app_state, caller, record)))


@_messages.get("/{message_id}", responses=refusals(400, 404))
async def dead_message(
    app_state: TheAppState, caller: Reader, record: FoundMessage, response: Response
) -> MessageDetail:
    """Show a dead message with its history. Its ETag is for a command's If-Match."""
    response.headers["ETag"] = etag(record.version)
    return MessageDetail(**dict(record), **dict(await story(app_state, caller, record)))


class EditedReplayBody(AssigningBody):
    """Try again to make a run of a message, as it was received or edited."""

    message_patch: dict[str, Any] | None = Field(
        default=None, description="JSON Merge Patch on a message that is a JSON object"
    )
    message: Annotated[str, StringConstraints(max_length=MIB)] | None = Field(
        default=None, description="in place of a message that is not a JSON object"
    )

    @property
    def is_edit(self) -> bool:
        """Whether it puts in the operator's own data."""
        return self.message_patch is not None or self.message is not None


@_events.post("/{dead_id}/replay", status_code=202, responses=_REFUSALS)
async def replay_event(
    app_state: TheAppState, caller: Operator, record: FoundEvent, seen: Versions, wanted: EditedReplayBody
) -> Answer:
    """Try again to make a run of a stored message, as it is or edited. 409: it still cannot become one."""
    if wanted.is_edit and app_state.settings.approvals:
        raise Refusal(
            409,
            "no_edit_of_events",
            "with REDRIVE_APPROVALS=on nobody can approve the edit of a dead event",
            "have its producer send it again, corrected, and discard this one",
        )
    command = Replay(**identity(caller, wanted), input_patch=wanted.message_patch)
    replays = await app_state.event_replays()
    return accepted(
        await replays.dead_event(
            record.tenant, record.id, command, seen, assign_to=wanted.assign_to, message=wanted.message
        )
    )


@_events.post("/{dead_id}/ignore", status_code=202, responses=_REFUSALS)
@_events.post("/{dead_id}/discard", status_code=202, responses=_REFUSALS)
async def discard_dead_event(
    app_state: TheAppState, caller: Operator, record: FoundEvent, seen: Versions, wanted: CommandBody
) -> Answer:
    """Discard a message that could not become a run; its record stays. `ignore` is an alias."""
    return accepted(await discard_event(await app_state.pool(), record, Discard(**identity(caller, wanted)), seen))


@_messages.post("/{message_id}/replay", status_code=202, responses=_REFUSALS)
async def replay_message(
    app_state: TheAppState, caller: Operator, record: FoundMessage, seen: Versions, wanted: AssigningBody
) -> Answer:
    """Send a message again, now, with its retry count reset."""
    command = Replay(**identity(caller, wanted))
    return accepted(await give(await app_state.pool(), record, command, seen, wanted.assign_to))


@_messages.post("/{message_id}/ignore", status_code=202, responses=_REFUSALS)
@_messages.post("/{message_id}/discard", status_code=202, responses=_REFUSALS)
async def discard_message(
    app_state: TheAppState, caller: Operator, record: FoundMessage, seen: Versions, wanted: CommandBody
) -> Answer:
    """Discard a message for good; its record stays. `ignore` is an alias."""
    return accepted(await give(await app_state.pool(), record, Discard(**identity(caller, wanted)), seen, None))


router.include_router(_messages)
router.include_router(_events)


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


@event_router.get("", responses=refusals(400))
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
    pool = await app_state.pool()
    record = await get_event(pool, tenant, await whole_id(pool, tenant, "events", event_id))
    if record is None:
        raise EventNotFound(f"no event of yours has the id {event_id[:200]!r}")
    return record


FoundStored = Annotated[StoredEvent, Depends(find_event)]


@event_router.get("/{event_id}", responses=refusals(400, 404))
async def event(app_state: TheAppState, caller: Reader, record: FoundStored) -> EventDetail:
    """Show an event and the outcomes of its projectors."""
    pool, payload = await app_state.pool(), await event_payload(app_state, caller, record)
    return EventDetail(
        **dict(record) | {"payload": payload},
        payload_hidden=payload is None,
        projectors=await projections_of(pool, record.tenant, record.id),
        audit=await audit_trail(pool, record.tenant, record.id),
    )


@event_router.post("/{event_id}/replay", status_code=202, responses=refusals(400, 404, 409, 413, 415))
async def replay(app_state: TheAppState, caller: Operator, record: FoundStored, wanted: EventReplayBody) -> EventAnswer:
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
