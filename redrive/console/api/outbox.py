"""`/outbox`: rows of the outbox, and their replay. Where no outbox is installed, the list is empty."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from redrive.access import Principal, Right
from redrive.console.api.answers import CommandBody, Listed, identity, refusals
from redrive.console.app_state import AppState, TheAppState
from redrive.console.authentication import Operator, Reader, Scope
from redrive.console.problems import Refusal
from redrive.contracts import NAME_PATTERN, Message
from redrive.errors import CommandRefused, EventNotFound, InvalidInput, NotConfigured
from redrive.field_types import Moment
from redrive.outbox.rows import OutboxEntry, OutboxFilter, OutboxRow, OutboxStatus
from redrive.postgres.paging import LARGEST_PAGE, Page
from redrive.store.dead_letters.lists import audit_trail
from redrive.store.dead_letters.models import AuditEntry

router = APIRouter(prefix="/outbox", tags=["outbox"])


class OutboxPage(Message):
    """Which rows, and which page of them."""

    tenant: str | None = Field(default=None, pattern=NAME_PATTERN, description="for owners: only this tenant")
    status: OutboxStatus | None = None
    pipeline: str | None = Field(default=None, pattern=NAME_PATTERN)
    key: str | None = Field(default=None, description="only the one with this key")
    since: Moment | None = Field(default=None, description="created since then")
    limit: int = Field(default=50, ge=1, le=LARGEST_PAGE)
    cursor: str | None = None


class OutboxRows(Listed):
    """A page of rows."""

    rows: list[OutboxRow]


class OutboxDetail(OutboxRow):
    """A row with its history. The payload is redacted, and only for those who may see payloads."""

    payload: dict[str, Any] | None
    payload_hidden: bool
    audit: list[AuditEntry]


class OutboxReplayBody(CommandBody):
    """Replay a failed row in place."""

    generation: int | None = Field(
        default=None, ge=-(2**63), lt=2**63, description="the row's new generation; by default the next one"
    )


class OutboxAnswer(Message):
    """The outcome of a replay: a bridge carries it out."""

    request_id: str
    event_id: UUID
    status: OutboxStatus
    generation: int


async def rows_of(app_state: AppState, chosen: OutboxFilter, limit: int, cursor: str | None) -> Page[OutboxRow]:
    """Return a page of rows, none where no outbox is installed."""
    try:
        return await app_state.outbox.list_rows(chosen, limit, cursor)
    except NotConfigured:
        return Page([], None)


async def find_row(app_state: TheAppState, tenant: Scope, event_id: str) -> OutboxEntry:
    """Return a row of this tenant; one of another tenant is not found."""
    try:
        return await app_state.outbox.get(tenant, event_id)
    except (EventNotFound, NotConfigured):
        raise EventNotFound(f"no row of yours has the id {event_id[:200]!r}") from None


FoundRow = Annotated[OutboxEntry, Depends(find_row)]


@router.get("", responses=refusals(400))
async def rows(
    app_state: TheAppState, _caller: Reader, tenant: Scope, choice: Annotated[OutboxPage, Query()]
) -> OutboxRows:
    """List rows of the outbox, the newest first."""
    fields = choice.model_dump(include={"status", "pipeline", "key", "since"})
    page = await rows_of(app_state, OutboxFilter(tenant=tenant, **fields), choice.limit, choice.cursor)
    return OutboxRows(rows=page.rows, cursor=page.cursor)


@router.get("/{event_id}", responses=refusals(400, 404))
async def row(app_state: TheAppState, caller: Reader, record: FoundRow) -> OutboxDetail:
    """Show a row, its failed cycles and the commands to it that were recorded while it had no run."""
    payload = await row_payload(app_state, caller, record)
    return OutboxDetail(
        **dict(record) | {"payload": payload}, payload_hidden=payload is None, audit=await row_trail(app_state, record)
    )


@router.post("/{event_id}/replay", status_code=202, responses=refusals(400, 404, 409, 413, 415))
async def replay(app_state: TheAppState, caller: Operator, record: FoundRow, wanted: OutboxReplayBody) -> OutboxAnswer:
    """Replay a failed row: its parked run continues in place, as by `outbox_replay()`. 409: it is not failed."""
    given = identity(caller, wanted)
    generation = record.generation + 1 if wanted.generation is None else wanted.generation
    try:
        await app_state.outbox.replay(record.event_id, generation, given["requested_by"], given["reason"])
    except InvalidInput as error:
        raise Refusal(409, CommandRefused.code, str(error), "nothing was changed") from None
    return OutboxAnswer(
        request_id=given["request_id"], event_id=record.event_id, status=OutboxStatus.PENDING, generation=generation
    )


async def row_payload(app_state: AppState, caller: Principal, record: OutboxEntry) -> dict[str, Any] | None:
    """Return a row's payload, redacted, for those who may see payloads."""
    if not caller.may(Right.PAYLOADS):
        return None
    payload: dict[str, Any] = await app_state.redactor.value_aside(record.payload)
    return payload


async def row_trail(app_state: AppState, record: OutboxEntry) -> list[AuditEntry]:
    """Return the commands to a row without a run; those to its run are in the run's own trail."""
    return await audit_trail(await app_state.pool(), record.tenant, f"outbox-{record.event_id}")
