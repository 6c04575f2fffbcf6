"""`/dead-events` and `/dead-messages`: what brokers gave and nobody could handle, and commands to it.

A dead event is an entry of a Redis stream that could not become a run. A dead message is one of RabbitMQ whose retries
are used up, or that cannot be read.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from redrive.access import Principal, Right
from redrive.console.api.answers import AssigningBody, CommandBody, Listed, Versions, accepted, etag, identity, refusals
from redrive.console.app_state import AppState, TheAppState
from redrive.console.authentication import BrokerScope, Operator, Reader
from redrive.console.message_contents import READ, Content, content
from redrive.console.problems import Place, unacceptable
from redrive.contracts import NAME_PATTERN, Message
from redrive.dead_letters import Answer, Discard, Replay
from redrive.errors import EventNotFound, MessageNotFound
from redrive.postgres.paging import LARGEST_PAGE
from redrive.postgres.records import Record
from redrive.store.dead_letters.lists import audit_trail
from redrive.store.dead_letters.models import AuditEntry
from redrive.store.events.commands import discard as discard_event
from redrive.store.events.dead import (
    DeadEvent,
    DeadEventFilter,
    DeadEventStatus,
    get_dead_event,
    list_dead_events,
    message_of,
)
from redrive.store.messages.commands import give
from redrive.store.messages.dead import (
    DeadMessage,
    MessageFilter,
    MessageStatus,
    find_dead,
    list_dead,
    parse_id,
    read_payload,
)

router = APIRouter()
_events = APIRouter(prefix="/dead-events", tags=["events from brokers"])
_messages = APIRouter(prefix="/dead-messages", tags=["dead messages"])
Dead = DeadEvent | DeadMessage
_REFUSALS = refusals(400, 404, 409, 412, 413, 415)


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
    record = await get_dead_event(await app_state.pool(), tenant, dead_id)
    if record is None:
        raise EventNotFound(f"no dead event of yours has the id {dead_id[:200]!r}")
    return record


async def find_message(app_state: TheAppState, tenant: BrokerScope, message_id: str) -> DeadMessage:
    """Return a dead message of this tenant; one of another tenant is not found."""
    known = parse_id(message_id)
    found = await find_dead(await app_state.pool(), tenant, known) if known else []
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


@_events.get("/{dead_id}", responses=refusals(404))
async def dead_event(app_state: TheAppState, caller: Reader, record: FoundEvent, response: Response) -> DeadEventDetail:
    """Show a dead event with its history. Its ETag is for a command's If-Match."""
    response.headers["ETag"] = etag(record.version)
    return DeadEventDetail(**dict(record), **dict(await story(app_state, caller, record)))


@_messages.get("/{message_id}", responses=refusals(404))
async def dead_message(
    app_state: TheAppState, caller: Reader, record: FoundMessage, response: Response
) -> MessageDetail:
    """Show a dead message with its history. Its ETag is for a command's If-Match."""
    response.headers["ETag"] = etag(record.version)
    return MessageDetail(**dict(record), **dict(await story(app_state, caller, record)))


def _add_commands(
    router: APIRouter, path: str, find: Callable[..., Awaitable[Dead]], replays: str, discards: str
) -> None:
    @router.post(f"{path}/replay", status_code=202, responses=_REFUSALS, description=replays)
    async def replay(
        app_state: TheAppState,
        caller: Operator,
        record: Annotated[Dead, Depends(find)],
        seen: Versions,
        wanted: AssigningBody,
    ) -> Answer:
        return await _give(app_state, record, Replay(**identity(caller, wanted)), seen, wanted.assign_to)

    @router.post(f"{path}/ignore", status_code=202, responses=_REFUSALS, description=discards)
    @router.post(f"{path}/discard", status_code=202, responses=_REFUSALS, description=discards)
    async def discard(
        app_state: TheAppState,
        caller: Operator,
        record: Annotated[Dead, Depends(find)],
        seen: Versions,
        wanted: CommandBody,
    ) -> Answer:
        return await _give(app_state, record, Discard(**identity(caller, wanted)), seen)


async def _give(
    app_state: AppState,
    record: Dead,
    command: Replay | Discard,
    seen: frozenset[str] | None,
    assign_to: str | None = None,
) -> Answer:
    if isinstance(record, DeadMessage):
        return accepted(await give(await app_state.pool(), record, command, seen, assign_to))
    if isinstance(command, Discard):
        return accepted(await discard_event(await app_state.pool(), record, command, seen))
    replays = await app_state.event_replays()
    return accepted(await replays.dead_event(record.tenant, record.id, command, seen, assign_to=assign_to))


_add_commands(
    _events,
    "/{dead_id}",
    find_dead_event,
    "Try again to make a run of a stored message. 409: it still cannot become one.",
    "Discard a message that could not become a run; its record stays. `ignore` is an alias.",
)
_add_commands(
    _messages,
    "/{message_id}",
    find_message,
    "Send a message again, now, with its retry count reset.",
    "Discard a message for good; its record stays. `ignore` is an alias.",
)
router.include_router(_messages)
router.include_router(_events)
