"""`/services`: whether the services that steps call can be used, as a worker finds them.

Services are the deployment's, not a tenant's: any reader may see them. No answer holds an address or a token.
"""

from fastapi import APIRouter

from redrive.console.api.answers import refusals
from redrive.console.app_state import TheAppState
from redrive.console.authentication import Reader
from redrive.errors import Unavailable
from redrive.service_states import ServiceStates

router = APIRouter(tags=["services"])


@router.get("/services", responses=refusals())
async def services(app_state: TheAppState, _caller: Reader) -> ServiceStates:
    """List the services that have a `health` path, with their states. A worker asks them. 503: none answered."""
    found = await app_state.services()
    if found is None:
        raise Unavailable("no worker answered that could ask the services: is one running?")
    return found
