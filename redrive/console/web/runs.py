"""Runs: the list, and one with its steps as a timeline."""

from datetime import UTC, datetime
from typing import Final

from fastapi import Request, Response
from pydantic import BaseModel

from redrive.console.api.runs import own_run, remembered_run
from redrive.console.app_state import TheDesk
from redrive.console.authentication import Reader, Scope
from redrive.console.run_lists import RunChoice, runs_page
from redrive.console.web.charts import strip
from redrive.console.web.render import show
from redrive.console.web.routes import page_router, query_of, read_query
from redrive.console.web.timeline import step_bars
from redrive.contracts import Name, RunStatus
from redrive.dead_letters import LetterId
from redrive.errors import RunNotFound

router = page_router()
PAGE: Final = 50


class RunsAsked(BaseModel):
    """The query of the runs' page."""

    status: RunStatus | None = None
    pipeline: Name | None = None
    cursor: str | None = None


@router.get("/runs")
async def runs(request: Request, desk: TheDesk, caller: Reader, tenant: Scope) -> Response:
    """Show runs, the newest first."""
    asked = read_query(RunsAsked, request)
    chosen = RunChoice(tenant=tenant, status=asked.status, pipeline=asked.pipeline)
    page = await runs_page(await desk.temporal(), await desk.seal(), chosen, PAGE, asked.cursor)
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
async def run(request: Request, desk: TheDesk, caller: Reader, tenant: Scope, run_id: str) -> Response:
    """Show a run's status, step by step."""
    try:
        view = await own_run(desk, tenant, run_id)
    except RunNotFound:
        view = await remembered_run(desk, tenant, run_id)
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
        links=desk.links(run=run_id),
    )
