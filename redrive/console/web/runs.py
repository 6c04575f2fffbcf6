"""Runs: the list, and one with its steps as a timeline."""

from datetime import UTC, datetime
from typing import Final

from fastapi import Request, Response
from pydantic import BaseModel

from redrive.console.api.runs import own_run, remembered_run
from redrive.console.app_state import TheAppState
from redrive.console.authentication import Reader, Scope
from redrive.console.run_lists import RunFilter, runs_page
from redrive.console.web.charts import strip
from redrive.console.web.render import show
from redrive.console.web.routes import page_router, query_of, read_query
from redrive.console.web.timeline import step_bars
from redrive.contracts import Name, RunStatus
from redrive.dead_letters import LetterId
from redrive.errors import RunNotFound

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
