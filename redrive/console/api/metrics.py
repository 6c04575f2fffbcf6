"""`/metrics`: the console's metrics, for Prometheus. Not of a tenant: any signed-in caller may read them."""

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from redrive.console.api.answers import refusals
from redrive.console.app_state import TheAppState
from redrive.console.authentication import Caller

router = APIRouter(tags=["health"])
_TEXT = {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus' text format"}


@router.get("/metrics", response_class=Response, responses=refusals() | {200: _TEXT})
async def metrics(app_state: TheAppState, _caller: Caller) -> Response:
    """Return the metrics."""
    return Response(generate_latest(app_state.metrics.registry), media_type=CONTENT_TYPE_LATEST)
