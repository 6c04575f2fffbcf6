"""Runs: the list, one with its steps as a timeline, the retries in flight, and the modules that can run."""

from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import Request, Response
from pydantic import BaseModel, BeforeValidator

from redrive.console.api.run_contents import FoundContents
from redrive.console.api.runs import RunFilter, named_runs, own_run, remembered_run, runs_page
from redrive.console.app_state import AppState, TheAppState
from redrive.console.authentication import PayloadReader, Reader, Scope
from redrive.console.web.charts import policy_curve, step_bars, strip
from redrive.console.web.render import show
from redrive.console.web.routes import list_url, moment, page_router, query_of, read_query
from redrive.contracts import Name, RunStatus
from redrive.dead_letters import LetterId
from redrive.errors import RedriveError, RunNotFound
from redrive.field_types import HeaderText, LabelFilter, Moment
from redrive.pending_activities import list_failing
from redrive.store.runs import RetryingFilter, count_retrying, list_retrying

router = page_router()
PAGE: Final = 50


class RunsQuery(BaseModel):
    """The query of the runs' page."""

    status: RunStatus | None = None
    pipeline: Name | None = None
    label: LabelFilter | None = None
    since: Annotated[Moment | None, BeforeValidator(moment)] = None
    until: Moment | None = None
    text: HeaderText | None = None
    cursor: str | None = None


@router.get("/runs")
async def runs(request: Request, app_state: TheAppState, caller: Reader, tenant: Scope) -> Response:
    """Show runs, the newest first."""
    asked = read_query(RunsQuery, request)
    found = await named_runs(app_state, tenant, asked.text)
    chosen = RunFilter(**asked.model_dump(exclude={"text", "cursor"}), tenant=tenant, run_ids=found)
    page = await runs_page(await app_state.temporal(), await app_state.seal(), chosen, PAGE, asked.cursor)
    return show(
        request,
        caller,
        "runs.html",
        asked=asked,
        rows=page.rows,
        # The next page must use the same moment for a time span before now.
        older=list_url(request)(cursor=page.cursor, **({"since": asked.since.isoformat()} if asked.since else {}))
        if page.cursor
        else None,
        query=query_of(request),
        pipelines=await _pipelines(app_state, asked.pipeline),
        statuses=list(RunStatus),
        tenant=tenant,
        url=list_url(request),
    )


async def _pipelines(app_state: AppState, asked: str | None) -> list[str]:
    """Return the choices of the filter: what workers know, and what was asked for."""
    try:
        known = [each.name for each in (await app_state.catalog()).pipelines]
    except RedriveError:
        known = []
    return sorted({*known, *([asked] if asked else [])})


@router.get("/runs/{run_id}")
async def run(request: Request, app_state: TheAppState, caller: Reader, tenant: Scope, run_id: str) -> Response:
    """Show a run's status, step by step."""
    try:
        view = await own_run(app_state, tenant, run_id)
    except RunNotFound:
        view = await remembered_run(app_state, tenant, run_id)
    return show(
        request,
        caller,
        "run.html",
        run=view,
        bars=step_bars(view.steps, view.closed_at or datetime.now(UTC)),
        steps=[
            (step, strip(step.attempts), LetterId(tenant=view.tenant, run_id=run_id, step=step.name).workflow_id)
            for step in view.steps
        ],
        links=app_state.links(caller, run=run_id),
    )


@router.get("/runs/{run_id}/steps/{step}")
async def run_step(request: Request, caller: PayloadReader, found: FoundContents) -> Response:
    """Show what a step is given and what it returned: put into a page when somebody unfolds it."""
    return show(request, caller, "run_step.html", step=found)


class RetryingQuery(BaseModel):
    """The query of the retries' page."""

    cursor: str | None = None


@router.get("/retrying")
async def retrying(request: Request, app_state: TheAppState, caller: Reader, tenant: Scope) -> Response:
    """Show the retries in flight, those due first."""
    asked, pool = read_query(RetryingQuery, request), await app_state.pool()
    page = await list_retrying(pool, RetryingFilter(tenant=tenant), PAGE, asked.cursor)
    return show(
        request,
        caller,
        "retrying.html",
        rows=page.rows,
        total=await count_retrying(pool, tenant),
        later=page.cursor,
        query=query_of(request),
    )


@router.get("/retrying/activities")
async def activities(request: Request, app_state: TheAppState, caller: Reader, tenant: Scope) -> Response:
    """Show failing activities of workflows that are no pipeline runs, among some of those that are open."""
    asked = read_query(RetryingQuery, request)
    found = await list_failing(await app_state.temporal(), tenant, app_state.redactor, asked.cursor)
    return show(request, caller, "activities.html", found=found, query=query_of(request))


@router.get("/modules")
async def modules(request: Request, app_state: TheAppState, caller: Reader) -> Response:
    """Show pipelines and modules."""
    catalog = await app_state.catalog()
    return show(
        request,
        caller,
        "modules.html",
        catalog=catalog,
        modules=[(module, policy_curve(module.policy)) for module in catalog.modules],
    )
