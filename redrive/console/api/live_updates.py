"""`/events`: live updates as server-sent events, for as long as the caller may see them."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from typing import Annotated, Final

from fastapi import APIRouter, Header, Request
from fastapi.responses import StreamingResponse

from redrive.access import Principal
from redrive.bulk import BulkView
from redrive.console.api.answers import refusals
from redrive.console.app_state import AppState, TheAppState
from redrive.console.authentication import Reader, Scope, identified
from redrive.console.live_updates import Listener
from redrive.errors import RedriveError
from redrive.postgres.database import DATABASE_ERRORS
from redrive.store.audit import Change, changes_after, heads

router = APIRouter(tags=["events"])
# How often a stream checks whether its caller may still listen; a silent one then also sends a keep-alive.
PULSE: Final = 10.0
_RESYNC: Final = "event: resync\ndata: {}\n\n"
_HERE: Final = ": here\n\n"
LastSeen = Annotated[
    str | None, Header(alias="Last-Event-ID", description="go on after this one; only in the stream of one tenant")
]


class EventStream(StreamingResponse):
    """A streamed answer."""

    media_type = "text/event-stream"


class _Admission:
    """Whether a stream may continue: checked again when the last check is old."""

    def __init__(self, request: Request, app_state: AppState, caller: Principal, tenant: str | None) -> None:
        self._request = request
        self._app_state = app_state
        self._caller = caller
        self._tenant = tenant
        self._stream = uuid.uuid4()
        self._asked_at = time.monotonic()

    @property
    def left(self) -> float:
        """The seconds until the next check."""
        return max(0.0, self._asked_at + PULSE - time.monotonic())

    async def take(self) -> None:
        """Take or keep one of a tenant's places for streams; refuse with 429 if none is free."""
        await self._app_state.tenant_limits.stream(self._tenant, self._stream)

    def give_back(self) -> None:
        """Release the place."""
        self._app_state.tenant_limits.stream_ended(self._tenant, self._stream)

    async def holds(self) -> bool:
        """Tell whether the caller is unchanged. If that cannot be checked, the stream ends; the page reconnects."""
        if self.left:
            return True
        try:
            if await identified(self._request) != self._caller:
                return False
            await self.take()
        except (RedriveError, *DATABASE_ERRORS):
            return False
        self._asked_at = time.monotonic()
        return True


@router.get("/events", response_class=EventStream, responses=refusals())
async def events(
    request: Request, app_state: TheAppState, caller: Reader, tenant: Scope, last: LastSeen = None
) -> EventStream:
    """Stream changes of dead letters: `change` updates with the record's id, status and the audit log entry.

    `bulk` updates report the progress of a bulk operation whenever it changes.
    `resync` tells a page to reload everything: it is the first update of a new stream, and follows an overflow.
    A stream ends soon after its caller loses the right to it, or changes role; open it again then.
    """
    admission = _Admission(request, app_state, caller, tenant)
    await admission.take()
    return EventStream(_stream(admission, app_state, tenant, last), headers={"X-Accel-Buffering": "no"})


async def _stream(
    admission: _Admission, app_state: AppState, tenant: str | None, last: str | None
) -> AsyncIterator[str]:
    try:
        async with app_state.feed.listening(tenant) as listener:
            yield "retry: 2000\n\n"
            seen = _number(last) if tenant is not None else None
            if tenant is None or seen is None:
                yield _RESYNC
                seen = (await heads(await app_state.pool(), tenant)).get(tenant, 0) if tenant else 0
            else:
                async for change in _missed(app_state, tenant, seen):
                    if not await admission.holds():
                        return
                    seen = change.number
                    yield _event(change, with_id=True)
            async for text in _live(admission, app_state, listener, seen):
                yield text
    finally:
        admission.give_back()


def _number(last: str | None) -> int | None:
    return int(last) if last and last.isascii() and last.isdigit() and len(last) < 18 else None


async def _missed(app_state: AppState, tenant: str, seen: int) -> AsyncIterator[Change]:
    while True:
        found = await changes_after(await app_state.pool(), tenant, seen)
        for change in found:
            yield change
        if not found:
            return
        seen = found[-1].number


async def _live(admission: _Admission, app_state: AppState, listener: Listener, seen: int) -> AsyncIterator[str]:
    stopping, getting = asyncio.ensure_future(app_state.stopping.wait()), None
    try:
        while not app_state.stopping.is_set():
            getting = getting or asyncio.ensure_future(listener.changes.get())
            await asyncio.wait({getting, stopping}, timeout=admission.left, return_when=asyncio.FIRST_COMPLETED)
            if app_state.stopping.is_set() or not await admission.holds():
                return
            if not getting.done():
                yield _HERE
                continue
            text, getting = _text(getting.result(), listener, seen), None
            if text:
                yield text
    finally:
        stopping.cancel()
        if getting:
            getting.cancel()


def _text(change: Change | BulkView | None, listener: Listener, seen: int) -> str | None:
    """Return the update for a listener, or None if they have seen it."""
    if change is None:
        return _RESYNC
    if isinstance(change, BulkView):
        return f"event: bulk\ndata: {change.model_dump_json()}\n\n"
    if listener.tenant is None or change.number > seen:
        return _event(change, with_id=listener.tenant is not None)
    return None


def _event(change: Change, *, with_id: bool) -> str:
    # One line: JSON has no raw line breaks, so nothing that an operator wrote can end the update early.
    lines = ["event: change", f"data: {change.model_dump_json()}"]
    return "\n".join([f"id: {change.number}", *lines] if with_id else lines) + "\n\n"
