"""`/runs`: start runs, show them, cancel them, let them continue."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from pydantic import Field

from redrive.console.api.answers import CommandBody, Listed, accepted, refusals
from redrive.console.app_state import AppState, TheAppState
from redrive.console.authentication import Operator, Reader, Scope, Starter
from redrive.console.problems import Place, Refusal
from redrive.console.run_lists import LARGEST_PAGE, RunFilter, runs_page
from redrive.contracts import DEFAULT_TENANT, NAME_PATTERN, Message, Name, RunStatus, RunSummary, RunView, StartedRun
from redrive.dead_letters import Answer
from redrive.errors import InvalidInput, RunNotFound
from redrive.header_values import HeaderText
from redrive.keys import check_key
from redrive.store.runs.commands import put_cancel
from redrive.store.runs.rows import get_run

router = APIRouter(prefix="/runs", tags=["runs"])
Key = Annotated[str | None, Header(alias="Idempotency-Key", description="the same key gives the same run")]


class Start(Message):
    """A run to start. Its tenant is the caller's."""

    pipeline: Name
    payload: dict[str, Any] = Field(default_factory=dict)
    correlation_id: HeaderText | None = None
    user_id: HeaderText | None = None


class Runs(Listed):
    """A page of runs."""

    runs: list[RunSummary]


class RunPage(Message):
    """Which runs, and which page of them."""

    tenant: str | None = Field(default=None, pattern=NAME_PATTERN, description="for owners: only this tenant")
    status: RunStatus | None = None
    pipeline: Name | None = None
    limit: int = Field(default=50, ge=1, le=LARGEST_PAGE)
    cursor: str | None = None


class RunDetail(RunView):
    """A run, with links into Temporal's Web UI."""

    links: dict[str, str] = Field(default_factory=dict)


@router.post(
    "",
    status_code=201,
    responses=refusals(400, 413, 415)
    | {200: {"model": StartedRun, "description": "The key has a run already (`Idempotent-Replayed: true`)"}},
)
async def start(
    app_state: TheAppState, _caller: Starter, tenant: Scope, wanted: Start, response: Response, key: Key = None
) -> StartedRun:
    """Start a run. With an `Idempotency-Key` a second start returns the run of the first."""
    await app_state.tenant_limits.start(tenant or DEFAULT_TENANT)
    redrive = await app_state.redrive()
    started = await redrive.start(
        wanted.pipeline,
        wanted.payload,
        tenant=tenant or DEFAULT_TENANT,
        key=None if key is None else _checked(key),
        correlation_id=wanted.correlation_id,
        user_id=wanted.user_id,
    )
    response.headers["Location"] = f"/api/v1/runs/{started.run_id}"
    if started.is_cached:
        response.status_code = 200
        response.headers["Idempotent-Replayed"] = "true"
    return started


def _checked(key: str) -> str:
    try:
        return check_key(key)
    except InvalidInput as error:
        place = Place(place="header.Idempotency-Key", problem=str(error))
        raise Refusal(
            400, "bad_key", f"header.Idempotency-Key: {error}", "take 1 to 255 visible characters", places=[place]
        ) from None


@router.get("", responses=refusals(400))
async def runs(app_state: TheAppState, _caller: Reader, tenant: Scope, choice: Annotated[RunPage, Query()]) -> Runs:
    """List runs, the newest first. Temporal's list lags behind by about a second, and old runs leave it."""
    chosen = RunFilter(tenant=tenant, status=choice.status, pipeline=choice.pipeline)
    page = await runs_page(await app_state.temporal(), await app_state.seal(), chosen, choice.limit, choice.cursor)
    return Runs(runs=page.rows, cursor=page.cursor)


@router.get("/{run_id}", responses=refusals(404))
async def run(app_state: TheAppState, _caller: Reader, tenant: Scope, run_id: str) -> RunDetail:
    """Show a run's status: its steps, attempts, the next retry, errors."""
    try:
        view = await own_run(app_state, tenant, run_id)
    except RunNotFound:
        view = await remembered_run(app_state, tenant, run_id)
    return RunDetail(**dict(view), links=app_state.links(run=run_id))


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
