"""Bulk operations: planned, approved by another admin, started, watched, stopped."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import parse_qs

from fastapi import Request, Response
from pydantic import BaseModel, ValidationError

from redrive.bulk import BulkCommand, BulkOptions, BulkStatus, BulkVerb, BulkView, ItemsRequest, ItemStatus, Position
from redrive.console.api.approvals import is_whole, seen_by
from redrive.console.api.bulk import OneTenant
from redrive.console.app_state import TheAppState
from redrive.console.authentication import Operator, Reader, Scope
from redrive.console.web.render import show
from redrive.console.web.routes import page_router, query_of, read_query
from redrive.dead_letters import LetterFilter, LetterSelection, LetterStatus, Verb
from redrive.documents import parse_json, parse_payload, validation_sentence
from redrive.errors import InvalidInput, RedriveError, TooLarge
from redrive.postgres.tenancy import Pool
from redrive.store.approvals import Approval, get_approval, list_approvals, not_found
from redrive.store.bulk.lists import get_bulk, list_bulks, list_items
from redrive.store.dead_letters.lists import list_letters
from redrive.store.dead_letters.models import LetterRow

router = page_router()
PAGE: Final = 100
_NEWEST: Final = 50
_CHOSEN: Final = LetterSelection.model_fields.keys() - {"letters"}
_OPTIONS: Final = ("verb", "mode", "rate", "parallelism", "canary", "stop_percent")
_DOCUMENTS: Final = ("input_patch", "output")
_FIELDS: Final = 1100


@router.get("/bulk")
async def bulks(request: Request, app_state: TheAppState, caller: Reader, tenant: Scope) -> Response:
    """Show the newest bulk operations, and the plans and edits that wait for another admin."""
    pool = await app_state.pool()
    asked = [each for each in await list_approvals(pool, tenant) if not each.used_for]
    return show(request, caller, "bulks.html", rows=await list_bulks(pool, tenant, _NEWEST), waiting=asked)


class NewBulkQuery(BaseModel):
    """The query of the form for a bulk operation. `rest_of` names a stopped one whose unsent items it is for."""

    verb: BulkVerb = Verb.REPLAY
    rest_of: str | None = None


@router.get("/bulk/new")
async def new(request: Request, app_state: TheAppState, caller: Operator, tenant: OneTenant) -> Response:
    """Show the form of a bulk operation for the selection in the query; the page then asks for its plan."""
    asked, pool = read_query(NewBulkQuery, request), await app_state.pool()
    stopped = await get_bulk(pool, tenant, asked.rest_of) if asked.rest_of else None
    chosen = {name: value for name, value in query_of(request).items() if name in _CHOSEN}
    letters = request.query_params.getlist("letter")
    if stopped:
        # What was applied is pending no more, and what failed again did so after `until`: the rest is left.
        selection = stopped.options.get("selection") or {}
        chosen = {name: str(selection[name]) for name in _CHOSEN if selection.get(name) is not None}
        letters = selection.get("letters") or []
    return show(
        request,
        caller,
        "bulk_new.html",
        tenant=tenant,
        verb=stopped.verb if stopped else asked.verb,
        chosen=chosen,
        letters=letters,
        stopped=stopped,
        group=await _group(pool, tenant, chosen),
        parallelism=BulkOptions.model_fields["parallelism"].default,
    )


async def _group(pool: Pool, tenant: str, selection: Mapping[str, Any]) -> LetterRow | None:
    """Return one dead letter of the group that a selection names by its fingerprint: people know it by its error."""
    fingerprint = selection.get("fingerprint")
    if not fingerprint:
        return None
    found = await list_letters(pool, LetterFilter(tenant=tenant, fingerprint=str(fingerprint)), 1)
    return found.rows[0] if found.rows else None


@router.post("/bulk/plan")
async def plan(request: Request, app_state: TheAppState, caller: Operator, tenant: OneTenant) -> Response:
    """Show what a bulk operation would do."""
    command = BulkCommand(tenant=tenant, **dict(_options(await request.body())))
    try:
        found, problem = await app_state.plan_bulk(command), None
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
    documents: dict[str, Any] = {"input_patch": parse_payload(given["input_patch"])} if "input_patch" in given else {}
    if "output" in given:
        documents["output"] = _output(given["output"])
    chosen: dict[str, Any] = {name: given[name] for name in _CHOSEN if name in given}
    if "letter" in fields:
        chosen["letters"] = fields["letter"]
    try:
        options = {name: given[name] for name in _OPTIONS if name in given}
        return BulkOptions(**options, **documents, selection=LetterSelection(**chosen))
    except ValidationError as error:
        raise InvalidInput(validation_sentence(error)) from None


def _output(text: str) -> Any:
    """Read what steps would have returned: an activity may return any JSON."""
    try:
        return parse_json(text)
    except TooLarge as error:
        raise TooLarge(f"output: {error}") from None
    except ValueError as error:
        raise InvalidInput(f"output: not valid JSON: {error}") from error


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
        per_minute=view.progress.applied / _minutes(view),
        left=_left(view),
        group=await _group(pool, view.tenant, view.options.get("selection") or {}),
        statuses=list(ItemStatus),
        links=app_state.links(caller, bulk=view.id),
    )


def _minutes(view: BulkView) -> float:
    seconds = ((view.finished_at or datetime.now(UTC)) - view.started_at).total_seconds()
    return max(seconds, 1.0) / 60


def _left(view: BulkView) -> timedelta | None:
    """Return how long the rest takes at the pace so far; None if nothing is known, or nothing goes on."""
    progress = view.progress
    ended = progress.applied + progress.failed + progress.skipped
    if view.status is not BulkStatus.RUNNING or not ended:
        return None
    return timedelta(minutes=(progress.pending + progress.under_way) * _minutes(view) / ended)


@router.get("/bulk/approvals/{plan_hash}")
async def bulk_approval(
    request: Request, app_state: TheAppState, caller: Reader, tenant: Scope, plan_hash: str
) -> Response:
    """Show what a plan would do, who asked and why; only another admin gets the button to approve."""
    pool = await app_state.pool()
    found = await get_approval(pool, tenant, plan_hash)
    if found.dead_letter is not None:
        raise not_found(plan_hash)
    approval = seen_by(caller, found)
    return show(
        request,
        caller,
        "bulk_approval.html",
        approval=approval,
        edit=_edit(approval),
        chosen=_chosen(approval),
        group=await _group(pool, approval.tenant, approval.plan["command"]["selection"]),
        options={name: value for name, value in _command(approval).items() if name not in {*_DOCUMENTS, "verb"}},
        wanted=_command(approval),
        is_complete=approval == found and is_whole(approval),
        is_over=approval.expires_at <= datetime.now(UTC),
        is_own=approval.requested_person == caller.person,
    )


def _command(approval: Approval) -> dict[str, Any]:
    """Return the command as the API takes it: the tenant is the caller's."""
    return {name: value for name, value in approval.plan["command"].items() if name != "tenant"}


def _chosen(approval: Approval) -> dict[str, Any]:
    """Return the plan's list of dead letters as a query string."""
    selection = approval.plan["command"]["selection"]
    fields = {name: value for name, value in selection.items() if value is not None}
    return {"view": "list", "status": LetterStatus.PENDING.value, "tenant": approval.tenant} | fields


def _edit(approval: Approval) -> Any:
    """Return the data that is put into each dead letter, redacted, if any."""
    command = approval.plan["command"]
    return next((command[name] for name in _DOCUMENTS if command.get(name) is not None), None)
