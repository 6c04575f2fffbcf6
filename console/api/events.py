"""`/events`: what changes, as server-sent events, for as long as the caller may see it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Final

import asyncpg
from fastapi import APIRouter, Header, Request
from fastapi.responses import StreamingResponse

from console.api.answers import refusals
from console.changes import Listener
from console.desk import Desk, TheDesk
from console.security import Reader, Scope, principal
from redrive.bulk_orders import BulkView
from redrive.errors import RedriveError
from store.changes import Change, changes_after, heads

router = APIRouter(tags=["events"])
# How often a silent stream says that it lives, and asks whether its caller may still listen.
PULSE: Final = 15.0
_RESYNC: Final = "event: resync\ndata: {}\n\n"
LastSeen = Annotated[
    str | None, Header(alias="Last-Event-ID", description="go on after this one; only in the stream of one tenant")
]


class EventStream(StreamingResponse):
    """An answer that goes on."""

    media_type = "text/event-stream"


@router.get("/events", response_class=EventStream, responses=refusals())
async def events(request: Request, desk: TheDesk, _caller: Reader, tenant: Scope, last: LastSeen = None) -> EventStream:
    """Stream changes of dead letters: `change` events with the record's id, status and the line in the audit log.

    `bulk` events tell how far a bulk operation is, whenever that has changed.
    `resync` tells a page to look at everything again: it is the first event of a new stream, and comes after a jam.
    """
    return EventStream(_stream(request, desk, tenant, last), headers={"X-Accel-Buffering": "no"})


async def _stream(request: Request, desk: Desk, tenant: str | None, last: str | None) -> AsyncIterator[str]:
    async with desk.feed.listening(tenant) as listener:
        yield "retry: 2000\n\n"
        seen = _number(last) if tenant is not None else None
        if tenant is None or seen is None:
            yield _RESYNC
            seen = (await heads(await desk.pool(), tenant)).get(tenant, 0) if tenant else 0
        else:
            async for change in _missed(desk, tenant, seen):
                seen = change.number
                yield _event(change, with_id=True)
        async for text in _live(request, desk, listener, seen):
            yield text


def _number(last: str | None) -> int | None:
    return int(last) if last and last.isascii() and last.isdigit() and len(last) < 18 else None


async def _missed(desk: Desk, tenant: str, seen: int) -> AsyncIterator[Change]:
    while True:
        found = await changes_after(await desk.pool(), tenant, seen)
        for change in found:
            yield change
        if not found:
            return
        seen = found[-1].number


async def _live(request: Request, desk: Desk, listener: Listener, seen: int) -> AsyncIterator[str]:
    stopping, getting = asyncio.ensure_future(desk.stopping.wait()), None
    try:
        while not desk.stopping.is_set():
            getting = asyncio.ensure_future(listener.changes.get())
            await asyncio.wait({getting, stopping}, timeout=PULSE, return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                change = getting.result()
                if change is None:
                    yield _RESYNC
                elif isinstance(change, BulkView):
                    yield f"event: bulk\ndata: {change.model_dump_json()}\n\n"
                elif listener.tenant is None or change.number > seen:
                    yield _event(change, with_id=listener.tenant is not None)
                continue
            getting.cancel()
            if desk.stopping.is_set() or not await _still_allowed(request):
                return
            yield ": here\n\n"
    finally:
        stopping.cancel()
        if getting:
            getting.cancel()


async def _still_allowed(request: Request) -> bool:
    """Ask again who listens. When that cannot be told, the stream ends, and the page comes back."""
    try:
        await principal(request)
    except (RedriveError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        return False
    return True


def _event(change: Change, *, with_id: bool) -> str:
    # One line: JSON has no raw line breaks, so nothing that an operator wrote can end the event early.
    lines = ["event: change", f"data: {change.model_dump_json()}"]
    return "\n".join([f"id: {change.number}", *lines] if with_id else lines) + "\n\n"
