"""Modules: what the workers can run, with their policies drawn as curves."""

from fastapi import Request, Response

from redrive.console.app_state import TheAppState
from redrive.console.authentication import Reader
from redrive.console.web.charts import policy_curve
from redrive.console.web.render import show
from redrive.console.web.routes import page_router

router = page_router()


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
