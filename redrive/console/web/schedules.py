"""Schedules: the list, and one with its times, its runs and the possible commands."""

from fastapi import Request, Response

from redrive.access import Right
from redrive.console.api.bulk import OneTenant
from redrive.console.api.schedules import seen_schedule, some_schedules
from redrive.console.app_state import TheAppState
from redrive.console.authentication import Reader, Scope
from redrive.console.web.render import show
from redrive.console.web.routes import page_router
from redrive.contracts import DEFAULT_TENANT
from redrive.schedules import Overlap

router = page_router()


@router.get("/schedules")
async def schedules(request: Request, app_state: TheAppState, caller: Reader, tenant: Scope) -> Response:
    """Show schedules, and the form that creates one."""
    catalog = await app_state.catalog() if caller.may(Right.COMMAND) else None
    return show(
        request,
        caller,
        "schedules.html",
        found=await some_schedules(app_state, tenant),
        pipelines=[each.name for each in catalog.pipelines] if catalog else [],
        overlaps=list(Overlap),
        tenant=tenant or DEFAULT_TENANT,
    )


@router.get("/schedules/{name}")
async def schedule(request: Request, app_state: TheAppState, caller: Reader, tenant: OneTenant, name: str) -> Response:
    """Show one schedule with its commands."""
    found = await seen_schedule(app_state, caller, tenant, name)
    return show(request, caller, "schedule.html", schedule=found)
