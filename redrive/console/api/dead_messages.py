"""`/dead-messages`: messages of RabbitMQ whose retries are used up or that cannot be read, and commands to them."""

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
from redrive.errors import MessageNotFound
from redrive.postgres.paging import LARGEST_PAGE
from redrive.store.dead_letters.lists import audit_trail
from redrive.store.dead_letters.models import AuditEntry
from redrive.store.messages.commands import assigned, take_command
from redrive.store.messages.dead import (
    DeadMessage,
    MessageFilter,
    MessageStatus,
    find_dead,
    list_dead,
    parse_id,
    read_payload,
)

router = APIRouter(prefix="/dead-messages", tags=["dead messages"])
_REFUSALS = refusals(400, 404, 409, 412, 413, 415)


class MessagePage(Message):
    """Which dead messages, and which page of them."""

    tenant: str | None = Field(default=None, pattern=NAME_PATTERN, description="for owners: only this tenant")
    status: MessageStatus | None = None
    queue: str | None = Field(default=None, description="only those that came from this queue")
    quarantined: bool = Field(default=False, description="for owners: only those that have no tenant")
    limit: int = Field(default=50, ge=1, le=LARGEST_PAGE)
    cursor: str | None = None


class DeadMessages(Listed):
    """A page of dead messages."""

    dead_messages: list[DeadMessage]


class MessageDetail(DeadMessage):
    """A dead message with its history. Its content is redacted, and only for those who may see payloads."""

    payload: Content | None
    payload_hidden: bool
    audit: list[AuditEntry]


@router.get("", responses=refusals(400))
async def dead_messages(
    app_state: TheAppState, _caller: Reader, tenant: BrokerScope, choice: Annotated[MessagePage, Query()]
) -> DeadMessages:
    """List dead messages, the newest failure first."""
    chosen = MessageFilter(tenant=tenant, status=choice.status, queue=choice.queue)
    page = await list_dead(await app_state.pool(), chosen, choice.limit, choice.cursor)
    return DeadMessages(dead_messages=page.rows, cursor=page.cursor)


async def find_message(app_state: TheAppState, tenant: BrokerScope, message_id: str) -> DeadMessage:
    """Return a dead message of this tenant; one of another tenant is not found."""
    known = parse_id(message_id)
    found = await find_dead(await app_state.pool(), tenant, known) if known else []
    if not found:
        raise _not_found(message_id)
    if len(found) > 1:
        raise unacceptable([Place(place="query.tenant", problem="more than one has a message of this id: name one")])
    return found[0]


Found = Annotated[DeadMessage, Depends(find_message)]


@router.get("/{message_id}", responses=refusals(404))
async def dead_message(app_state: TheAppState, caller: Reader, record: Found, response: Response) -> MessageDetail:
    """Show a dead message with its history. Its ETag is for a command's If-Match."""
    carried = await message_content(app_state, caller, record)
    response.headers["ETag"] = etag(record.version)
    return MessageDetail(
        **dict(record),
        payload=carried,
        payload_hidden=carried is None,
        audit=await audit_trail(await app_state.pool(), record.tenant, record.id),
    )


@router.post("/{message_id}/replay", status_code=202, responses=_REFUSALS)
async def replay(
    app_state: TheAppState, caller: Operator, record: Found, seen: Versions, wanted: AssigningBody
) -> Answer:
    """Send a message again, now, with its retry count reset."""
    command = Replay(**identity(caller, wanted))
    owner = await assigned(await app_state.pool(), record, wanted.assign_to, command)
    return await _give(app_state, record.model_copy(update={"tenant": owner}), command, seen)


@router.post("/{message_id}/ignore", status_code=202, responses=_REFUSALS)
@router.post("/{message_id}/discard", status_code=202, responses=_REFUSALS)
async def discard(
    app_state: TheAppState, caller: Operator, record: Found, seen: Versions, wanted: CommandBody
) -> Answer:
    """Discard a message for good; its record stays. `ignore` is an alias."""
    return await _give(app_state, record, Discard(**identity(caller, wanted)), seen)


async def _give(
    app_state: AppState, record: DeadMessage, command: Replay | Discard, seen: frozenset[str] | None
) -> Answer:
    answer = await take_command(await app_state.pool(), record.tenant, record.message_id, command, seen)
    if answer is None:
        raise _not_found(record.id)
    return accepted(answer)


def _not_found(text: str) -> MessageNotFound:
    return MessageNotFound(f"no dead message of yours has the id {text[:200]!r}")


async def message_content(app_state: AppState, caller: Principal, record: DeadMessage) -> Content | None:
    """Return the content of a message, for those who may see it."""
    if not caller.may(Right.PAYLOADS):
        return None
    return content(await read_payload(await app_state.pool(), record, READ + 1), app_state.redactor)
