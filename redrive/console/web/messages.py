"""Dead messages of RabbitMQ: the list, and one with its cause, content and commands."""

from typing import Final, Literal

from fastapi import Request, Response
from pydantic import BaseModel

from redrive.console.api.dead_messages import Found, message_content
from redrive.console.app_state import TheAppState
from redrive.console.authentication import BrokerScope, Reader
from redrive.console.web.render import show
from redrive.console.web.routes import list_url, page_router, query_of, read_query
from redrive.store.dead_letters.lists import audit_trail
from redrive.store.messages.dead import MessageFilter, MessageStatus, list_dead

router = page_router()
PAGE: Final = 50


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


@router.get("/messages")
async def messages(request: Request, app_state: TheAppState, caller: Reader, tenant: BrokerScope) -> Response:
    """Show dead messages, the newest failure first."""
    asked = read_query(MessagesQuery, request)
    page = await list_dead(await app_state.pool(), asked.filter(tenant), PAGE, asked.cursor)
    return show(
        request,
        caller,
        "messages.html",
        asked=asked,
        rows=page.rows,
        older=page.cursor,
        query=query_of(request),
        statuses=list(MessageStatus),
        url=list_url(request),
    )


@router.get("/messages/{message_id}")
async def message(request: Request, app_state: TheAppState, caller: Reader, record: Found) -> Response:
    """Show one dead message: its cause, its content, its history, and the possible commands."""
    return show(
        request,
        caller,
        "message.html",
        message=record,
        content=await message_content(app_state, caller, record),
        trail=await audit_trail(await app_state.pool(), record.tenant, record.id),
    )
