"""`/modules`: what the workers can run."""

from fastapi import APIRouter

from redrive.console.api.answers import refusals
from redrive.console.app_state import TheAppState
from redrive.console.authentication import Reader
from redrive.contracts import Catalog

router = APIRouter(tags=["modules"])


@router.get("/modules", responses=refusals())
async def modules(app_state: TheAppState, _caller: Reader) -> Catalog:
    """List modules and pipelines, with their policies and the schemas of inputs and outputs."""
    return await app_state.catalog()
