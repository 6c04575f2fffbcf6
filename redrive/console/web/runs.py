"""Runs: the list, one with its steps as a timeline, the retries in flight, and the modules that can run."""

from datetime import UTC, datetime
from typing import Final

from fastapi import Request, Response
from pydantic import BaseModel

from redrive.console.api.runs import own_run, remembered_run
from redrive.console.app_state import TheAppState
from redrive.console.authentication import Reader, Scope
from redrive.console.run_lists import RunFilter, runs_page
from redrive.console.web.charts import policy_curve, strip
from redrive.console.web.render import show
from redrive.console.web.routes import page_router, query_of, read_query
from redrive.console.web.timeline import step_bars
from redrive.contracts import Name, RunStatus
from redrive.dead_letters import LetterId
from redrive.errors import RunNotFound
from redrive.store.runs.retrying import RetryingFilter, count_retrying, list_retrying

router = page_router()
PAGE: Final = 50


class RunsQuery(BaseModel):
    """The query of the runs' page."""

    status: RunStatus | None = None
    pipeline: Name | None = None
    cursor: str | None = None


@router.get("/runs")
async def runs(request: Request, app_state: TheAppState, caller: Reader, tenant: Scope) -> Response:
    """Show runs, the newest first."""
    asked = read_query(RunsQuery, request)
    chosen = RunFilter(tenant=tenant, status=asked.status, pipeline=asked.pipeline)
    page = await runs_page(await app_state.temporal(), await app_state.seal(), chosen, PAGE, asked.cursor)
    return show(
        request,
        caller,
        "runs.html",
        asked=asked,
        rows=page.rows,
        older=page.cursor,
        query=query_of(request),
        statuses=list(RunStatus),
        tenant=tenant,
    )


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
        links=app_state.links(run=run_id),
    )


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
