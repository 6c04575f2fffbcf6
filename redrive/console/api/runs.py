"""`/runs`, `/retrying`, `/modules`: list, show and cancel runs, let them continue; steps in retry; modules.

Lists of runs come from Temporal: only it knows the open ones. Each page is one query.
"""

import base64
from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from redrive.console.api.answers import CommandBody, Listed, accepted, refusals
from redrive.console.app_state import AppState, TheAppState
from redrive.console.authentication import Operator, Reader, Scope
from redrive.console.problems import Refusal
from redrive.console.seals import Seal
from redrive.contracts import (
    NAME_PATTERN,
    Catalog,
    Message,
    Name,
    RunStatus,
    RunSummary,
    RunView,
)
from redrive.dead_letters import Answer
from redrive.errors import RunNotFound, Unavailable
from redrive.field_types import HeaderText, LabelFilter, Moment
from redrive.postgres.paging import LARGEST_PAGE, ListCursor, Page, Total, foreign_cursor, mark_of, pack, unpack
from redrive.store.runs import (
    RetryingFilter,
    RetryingStep,
    count_retrying,
    find_run_ids,
    get_run,
    list_retrying,
    put_cancel,
)
from redrive.visibility import runs_query, summary

LARGEST_RUN_PAGE: Final = 200
# How Temporal's stores answer a token that they cannot read.
_UNREAD: Final = frozenset({RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.INTERNAL, RPCStatusCode.UNKNOWN})
router = APIRouter(prefix="/runs", tags=["runs"])
retrying_router = APIRouter(tags=["runs"])
modules_router = APIRouter(tags=["modules"])


class RunFilter(BaseModel):
    """Which runs. `tenant` None means all."""

    tenant: str | None
    status: RunStatus | None
    pipeline: str | None
    label: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    run_ids: tuple[str, ...] | None = None


async def named_runs(app_state: AppState, tenant: str | None, text: str | None) -> tuple[str, ...] | None:
    """Return the ids of runs that have this id, key or correlation id; None if there is no text."""
    if text is None:
        return None
    return (text, *await find_run_ids(await app_state.pool(), tenant, text))


class _Cursor(ListCursor):
    token: str = Field(description="Temporal's own, signed: one that was changed would keep its server busy for long")


async def runs_page(client: Client, seal: Seal, chosen: RunFilter, limit: int, cursor: str | None) -> Page[RunSummary]:
    """Return the newest matching runs, after the cursor of the previous page."""
    query = runs_query(**dict(chosen))
    pages = client.list_workflows(query, page_size=limit, next_page_token=_read(seal, cursor, chosen))
    try:
        await pages.fetch_next_page()
    except RPCError as error:
        if cursor is not None and error.status in _UNREAD:
            # Temporal gave it and no longer knows it: another version, or another visibility store.
            raise foreign_cursor(cursor) from error
        raise Unavailable(f"Temporal did not list runs ({error.status.name.lower()}); try again") from error
    rows = [summary(execution.raw_info) for execution in pages.current_page or ()]
    # The query already names the tenant: this is the second check, as Temporal has none of its own.
    mine = [row for row in rows if chosen.tenant in {None, row.tenant}]
    return Page(mine, _write(seal, pages.next_page_token, chosen) if pages.next_page_token else None)


def _write(seal: Seal, token: bytes, chosen: RunFilter) -> str:
    signed = seal.sign(_purpose(chosen), base64.b64encode(token).decode())
    return pack(_Cursor(token=signed, list=mark_of(chosen)))


def _read(seal: Seal, cursor: str | None, chosen: RunFilter) -> bytes | None:
    if cursor is None:
        return None
    token = seal.read(_purpose(chosen), unpack(_Cursor, cursor, chosen).token)
    if token is None:
        raise foreign_cursor(cursor)
    return base64.b64decode(token)


def _purpose(chosen: RunFilter) -> str:
    return f"runs {mark_of(chosen)}"


class Runs(Listed):
    """A page of runs."""

    runs: list[RunSummary]


class RunPage(Message):
    """Which runs, and which page of them."""

    tenant: str | None = Field(default=None, pattern=NAME_PATTERN, description="for owners: only this tenant")
    status: RunStatus | None = None
    pipeline: Name | None = None
    label: LabelFilter | None = Field(default=None, description="labels that they have: `mission_id=42,stage_id=2`")
    since: Moment | None = Field(default=None, description="started at this moment or later")
    until: Moment | None = Field(default=None, description="started before this moment")
    text: HeaderText | None = Field(
        default=None, description="a run id, a key, or the correlation id of runs that were parked or ended"
    )
    limit: int = Field(default=50, ge=1, le=LARGEST_RUN_PAGE)
    cursor: str | None = None


class RunDetail(RunView):
    """A run, with links into Temporal's Web UI."""

    links: dict[str, str] = Field(default_factory=dict)


@router.get("", responses=refusals(400))
async def runs(app_state: TheAppState, _caller: Reader, tenant: Scope, choice: Annotated[RunPage, Query()]) -> Runs:
    """List runs, the newest first. Temporal's list lags behind by about a second, and old runs leave it."""
    found = await named_runs(app_state, tenant, choice.text)
    chosen = RunFilter(**choice.model_dump(exclude={"tenant", "text", "limit", "cursor"}), tenant=tenant, run_ids=found)
    page = await runs_page(await app_state.temporal(), await app_state.seal(), chosen, choice.limit, choice.cursor)
    return Runs(runs=page.rows, cursor=page.cursor)


@router.get("/{run_id}", responses=refusals(400, 404))
async def run(app_state: TheAppState, caller: Reader, tenant: Scope, run_id: str) -> RunDetail:
    """Show a run's status: its steps, attempts, the next retry, errors."""
    try:
        view = await own_run(app_state, tenant, run_id)
    except RunNotFound:
        view = await remembered_run(app_state, tenant, run_id)
    return RunDetail(**dict(view), links=app_state.links(caller, run=run_id))


async def own_run(app_state: AppState, tenant: str | None, run_id: str) -> RunView:
    """Return a run of this tenant from Temporal; one of another tenant is not found."""
    redrive = await app_state.redrive()
    try:
        view = await redrive.status(run_id)
    except RunNotFound:
        raise _not_found(run_id) from None
    if tenant not in {None, view.tenant}:
        raise _not_found(run_id)
    return view


async def remembered_run(app_state: AppState, tenant: str | None, run_id: str) -> RunView:
    """Return what the records hold about a run that Temporal has forgotten."""
    row = await get_run(await app_state.pool(), tenant, run_id)
    if row is None:
        raise _not_found(run_id)
    return RunView(
        run_id=row.run_id,
        tenant=row.tenant,
        pipeline=row.pipeline,
        status=row.status,
        started_at=row.started_at,
        closed_at=row.closed_at,
        note="Temporal has forgotten this run: its steps are not known any more",
    )


def _not_found(run_id: str) -> RunNotFound:
    return RunNotFound(f"no run of yours has the id {run_id[:200]!r}")


class CancelRequested(Message):
    """What was asked for."""

    run_id: str
    requested: str


@router.post("/{run_id}/cancel", status_code=202, responses=refusals(400, 404, 409, 413, 415))
async def cancel(
    app_state: TheAppState, caller: Operator, tenant: Scope, run_id: str, wanted: CommandBody
) -> CancelRequested:
    """Ask an open run to stop: its running step is interrupted, later ones do not start."""
    view = await own_run(app_state, tenant, run_id)
    if view.status.closed:
        raise Refusal(409, "run_ended", f"run {run_id!r} is {view.status.value}", "only an open run can be canceled")
    redrive, pool = await app_state.redrive(), await app_state.pool()
    await put_cancel(pool, tenant=view.tenant, run_id=run_id, actor=caller.name, reason=wanted.reason)
    await redrive.cancel(run_id, reason=f"{wanted.reason} (asked for by {caller.name})")
    return CancelRequested(run_id=run_id, requested="cancel")


@router.post("/{run_id}/continue", status_code=202, responses=refusals(400, 404, 409, 413, 415))
async def go_on(app_state: TheAppState, caller: Operator, tenant: Scope, run_id: str, wanted: CommandBody) -> Answer:
    """Let a PARTIAL run, which waits after a STEP_ONLY replay, continue with its later steps."""
    await own_run(app_state, tenant, run_id)
    letters = (await app_state.redrive()).dead_letters
    return accepted(
        await letters.go_on(run_id, requested_by=caller.name, reason=wanted.reason, request_id=wanted.request_id)
    )


class RetryingPage(Message):
    """Which page of the list."""

    tenant: str | None = Field(default=None, pattern=NAME_PATTERN, description="for owners: only this tenant")
    limit: int = Field(default=50, ge=1, le=LARGEST_PAGE)
    cursor: str | None = None


class Retrying(Listed):
    """A page of retries in flight."""

    retrying: list[RetryingStep]
    total: Total


@retrying_router.get("/retrying", responses=refusals(400))
async def retrying(
    app_state: TheAppState, _caller: Reader, tenant: Scope, choice: Annotated[RetryingPage, Query()]
) -> Retrying:
    """List the steps whose last attempt failed and that are retried, those due first."""
    pool = await app_state.pool()
    page = await list_retrying(pool, RetryingFilter(tenant=tenant), choice.limit, choice.cursor)
    return Retrying(retrying=page.rows, cursor=page.cursor, total=await count_retrying(pool, tenant))


@modules_router.get("/modules", responses=refusals())
async def modules(app_state: TheAppState, _caller: Reader) -> Catalog:
    """List modules and pipelines, with their policies and the schemas of inputs and outputs."""
    return await app_state.catalog()
