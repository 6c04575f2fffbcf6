"""Ask services whether they can be used: a result for each, and an error only for what is set up wrongly."""

import asyncio

from pydantic import BaseModel, Field

from redrive import SERVICE_CALL, ModuleContext, Pipeline, module
from redrive.connectors.probes import Probe, probe


class Services(BaseModel):
    """The names of configured services, with the paths of their health endpoints."""

    services: dict[str, str] = Field(min_length=1, max_length=20)


class States(BaseModel):
    """What was found, by the services' names."""

    probes: dict[str, Probe]


@module("probe-services", policy=SERVICE_CALL, effect="none")
async def probe_services(ctx: ModuleContext, given: Services) -> States:
    """Probe all of them at once."""
    names = list(given.services)
    found = await asyncio.gather(*(probe(ctx.http.service(name), path=given.services[name]) for name in names))
    return States(probes=dict(zip(names, found, strict=True)))


Pipeline("check-services", probe_services)
