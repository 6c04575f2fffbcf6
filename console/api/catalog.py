"""`/modules`: what the workers can run."""

from fastapi import APIRouter

from console.api.answers import refusals
from console.desk import TheDesk
from console.security import Reader
from redrive.contracts import Catalog

router = APIRouter(tags=["modules"])


@router.get("/modules", responses=refusals())
async def modules(desk: TheDesk, _caller: Reader) -> Catalog:
    """List modules and pipelines, with their policies and the schemas of inputs and outputs."""
    return await desk.catalog()
