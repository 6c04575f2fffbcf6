"""Bulk operations: planned, started, watched, stopped."""

from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qs

from fastapi import Request, Response
from pydantic import BaseModel, ValidationError

from redrive.bulk import BulkCommand, BulkOptions, BulkVerb, BulkView, ItemsRequest, ItemStatus, Position
from redrive.console.api.bulk import OneTenant
from redrive.console.app_state import TheAppState
from redrive.console.authentication import Operator, Reader, Scope
from redrive.console.web.render import show
from redrive.console.web.routes import page_router, query_of, read_query
from redrive.dead_letters import LetterSelection, Verb
from redrive.documents import parse_payload, validation_sentence
from redrive.errors import InvalidInput, RedriveError
from redrive.store.approvals import list_approvals
from redrive.store.bulk.lists import get_bulk, list_bulks, list_items

router = page_router()
PAGE: Final = 100
_NEWEST: Final = 50
_CHOSEN: Final = LetterSelection.model_fields.keys() - {"letters"}
_OPTIONS: Final = ("verb", "mode", "rate", "parallelism", "canary", "stop_percent")
_DOCUMENTS: Final = ("input_patch", "output")
_FIELDS: Final = 1100


@router.get("/bulk")
async def bulks(request: Request, app_state: TheAppState, caller: Reader, tenant: Scope) -> Response:
    """Show the newest bulk operations, and the plans that wait for another admin."""
    pool = await app_state.pool()
    asked = [each for each in await list_approvals(pool, tenant) if each.dead_letter is None and not each.used_for]
    return show(request, caller, "bulks.html", rows=await list_bulks(pool, tenant, _NEWEST), waiting=asked)


class NewBulkQuery(BaseModel):
    """The query of the form for a bulk operation."""

    verb: BulkVerb = Verb.REPLAY


@router.get("/bulk/new")
async def new(request: Request, caller: Operator, tenant: OneTenant) -> Response:
    """Show the form of a bulk operation for the selection in the query; the page then asks for its plan."""
    return show(
        request,
        caller,
        "bulk_new.html",
        tenant=tenant,
        verb=read_query(NewBulkQuery, request).verb,
        chosen={name: value for name, value in query_of(request).items() if name in _CHOSEN},
        letters=request.query_params.getlist("letter"),
    )


@router.post("/bulk/plan")
async def plan(request: Request, app_state: TheAppState, caller: Operator, tenant: OneTenant) -> Response:
    """Show what a bulk operation would do."""
    command = BulkCommand(tenant=tenant, **dict(_options(await request.body())))
    try:
        found, problem = await (await app_state.redrive()).bulk.plan(command), None
    except RedriveError as error:
        found, problem = None, str(error)
    # As the API takes it: the tenant is the caller's.
    given = found.command.model_dump(mode="json", exclude={"tenant"}) if found else None
    return show(request, caller, "bulk_plan.html", plan=found, command=given, problem=problem)


def _options(body: bytes) -> BulkOptions:
    """Read what the form says."""
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=_FIELDS)
    except ValueError:
        raise InvalidInput("the form has more fields than it should: reload the page") from None
    given = {name: values[-1] for name, values in fields.items() if values[-1].strip()}
    documents = {name: parse_payload(given[name]) for name in _DOCUMENTS if name in given}
    chosen: dict[str, Any] = {name: given[name] for name in _CHOSEN if name in given}
    if "letter" in fields:
        chosen["letters"] = fields["letter"]
    try:
        options = {name: given[name] for name in _OPTIONS if name in given}
        return BulkOptions(**options, **documents, selection=LetterSelection(**chosen))
    except ValidationError as error:
        raise InvalidInput(validation_sentence(error)) from None


class ItemsQuery(BaseModel):
    """The query of a page of items."""

    status: ItemStatus | None = None
    after: Position | None = None


@router.get("/bulk/{bulk_id}")
async def bulk(request: Request, app_state: TheAppState, caller: Reader, tenant: Scope, bulk_id: str) -> Response:
    """Show a bulk operation's progress, and the outcome of each item."""
    asked = read_query(ItemsQuery, request)
    pool = await app_state.pool()
    view = await get_bulk(pool, tenant, bulk_id)
    wanted = ItemsRequest(tenant=view.tenant, bulk_id=view.id, status=asked.status, after=asked.after, limit=PAGE)
    return show(
        request,
        caller,
        "bulk.html",
        bulk=view,
        asked=asked,
        items=await list_items(pool, view.tenant, wanted),
        per_minute=_rate(view),
        statuses=list(ItemStatus),
        links=app_state.links(bulk=view.id),
    )


def _rate(view: BulkView) -> float:
    """Return how many items have ended per minute so far."""
    ended = view.progress.applied + view.progress.failed + view.progress.skipped
    seconds = ((view.finished_at or datetime.now(UTC)) - view.started_at).total_seconds()
    return ended / max(seconds, 1.0) * 60
