"""`/healthz`, `/readyz`, `/metrics`: whether the process is alive and can serve, and its metrics for Prometheus.

The metrics are not of a tenant: any signed-in caller may read them.
"""

import asyncio

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import Field
from temporalio.service import RPCError

from redrive.console.api.answers import refusals
from redrive.console.app_state import AppState, TheAppState
from redrive.console.authentication import Caller
from redrive.contracts import Message
from redrive.errors import Unavailable
from redrive.postgres.database import DRIVER_ERRORS, database_problem

router = APIRouter(tags=["health"])
TIMEOUT = 5.0
_TEXT = {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus' text format"}


class Health(Message):
    """Whether it is healthy, and what is not."""

    status: str
    problems: dict[str, str] = Field(default_factory=dict)


@router.get("/healthz")
async def healthz() -> Health:
    """Answer, as long as the process can."""
    return Health(status="ok")


@router.get("/readyz", responses={503: {"model": Health, "description": "Something that is needed does not answer"}})
async def readyz(request: Request, app_state: TheAppState, response: Response) -> Health:
    """Check whether the database and Temporal answer."""
    await app_state.strangers.count(request, "readyz")
    database, temporal = await asyncio.gather(_database(app_state), _temporal(app_state))
    problems = {name: text for name, text in (("database", database), ("temporal", temporal)) if text}
    response.status_code = 503 if problems else 200
    return Health(status="unavailable" if problems else "ok", problems=problems)


async def _database(app_state: AppState) -> str | None:
    try:
        async with asyncio.timeout(TIMEOUT):
            await (await app_state.pool()).fetchval("SELECT 1")
    except Unavailable as error:
        return str(error)
    except DRIVER_ERRORS as error:
        return database_problem(error)
    return None


async def _temporal(app_state: AppState) -> str | None:
    try:
        async with asyncio.timeout(TIMEOUT):
            healthy = await (await app_state.temporal()).service_client.check_health()
    except (Unavailable, TimeoutError, RPCError) as error:
        return str(error) or f"no answer within {TIMEOUT:g} s"
    return None if healthy else "Temporal does not serve"


@router.get("/metrics", response_class=Response, responses=refusals() | {200: _TEXT})
async def metrics(app_state: TheAppState, _caller: Caller) -> Response:
    """Return the metrics."""
    return Response(generate_latest(app_state.metrics.registry), media_type=CONTENT_TYPE_LATEST)
