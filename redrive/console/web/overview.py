"""The overview: dead letters by number, age and kind; retries; and bulk operations under way."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

from fastapi import Request, Response
from temporalio.service import RPCError

from redrive.console.app_state import AppState, TheAppState
from redrive.console.authentication import Reader, Scope
from redrive.console.web.charts import hour_bars, shares
from redrive.console.web.health_figures import SPAN, latencies, pace, workers
from redrive.console.web.render import show
from redrive.console.web.routes import page_router
from redrive.contracts import RunStatus
from redrive.errors import RedriveError
from redrive.store.dead_letters.figures import failed_hours, stats
from redrive.store.runs import RetryingFilter, count_retrying, list_retrying, recent_outcomes
from redrive.visibility import runs_query

router = page_router()
_TIMEOUT: Final = timedelta(seconds=5)
_GROUPS: Final = 5
_DUE_NEXT: Final = 3


@router.get("/")
async def overview(request: Request, app_state: TheAppState, caller: Reader, tenant: Scope) -> Response:
    """Show the state of dead letters and retries."""
    pool = await app_state.pool()
    now = datetime.now(UTC)
    found, hours, retrying, due = await asyncio.gather(
        stats(pool, tenant, _GROUPS),
        failed_hours(pool, tenant, now),
        count_retrying(pool, tenant),
        list_retrying(pool, RetryingFilter(tenant=tenant), _DUE_NEXT),
    )
    return show(
        request,
        caller,
        "overview.html",
        stats=found,
        oldest=now - found.oldest_open if found.oldest_open is not None else None,
        chart=hour_bars(hours),
        failed=sum(hour.total for hour in hours),
        by_category=shares({category.value: count for category, count in found.by_category.items()}),
        by_step=shares(found.by_step),
        retrying=retrying,
        due=due.rows,
        tenant=tenant,
    )


@router.get("/overview/runs")
async def run_counts(request: Request, app_state: TheAppState, caller: Reader, tenant: Scope) -> Response:
    """Show how many runs are open. Temporal counts them: the page does not wait for it."""
    wanted = (RunStatus.RUNNING, RunStatus.DLQ_PENDING, RunStatus.PARTIAL)
    try:
        counts = await asyncio.gather(*(_count(app_state, tenant, status) for status in wanted))
    except (RedriveError, RPCError, TimeoutError):
        return show(request, caller, "run_counts.html", counts=None)
    return show(request, caller, "run_counts.html", counts=dict(zip(wanted, counts, strict=True)))


@router.get("/overview/health")
async def health(request: Request, app_state: TheAppState, caller: Reader, tenant: Scope) -> Response:
    """Show how runs and workers do now. Temporal is asked: the page does not wait for it."""
    now = datetime.now(UTC)
    done = pace(await recent_outcomes(await app_state.pool(), tenant, now - SPAN))
    try:
        client = await app_state.temporal()
        steps, polling = await asyncio.gather(
            latencies(client, tenant, now), workers(client, app_state.settings.task_queue)
        )
    except (RedriveError, RPCError, TimeoutError):
        return show(request, caller, "health.html", pace=done, steps=None, workers=None)
    return show(request, caller, "health.html", pace=done, steps=steps, workers=polling)


@router.get("/overview/services")
async def services(request: Request, app_state: TheAppState, caller: Reader) -> Response:
    """Show how the services do that steps call. A worker asks them: the page does not wait for it."""
    return show(request, caller, "services.html", states=await app_state.services())


async def _count(app_state: AppState, tenant: str | None, status: RunStatus) -> int:
    query = runs_query(tenant=tenant, status=status, pipeline=None)
    return (await (await app_state.temporal()).count_workflows(query, rpc_timeout=_TIMEOUT)).count
