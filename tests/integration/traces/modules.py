"""A pipeline that calls a service, for the tests of traces."""

from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from redrive import ModuleContext, Pipeline, module
from redrive.policy import STEP


class Charge(BaseModel):
    """What is asked of the service."""

    card: str = ""


class Charged(BaseModel):
    """What it answers."""

    status: int


@module("charge", policy=STEP.model_copy(update={"base": timedelta(milliseconds=1)}))
async def charge(ctx: ModuleContext, given: Charge) -> Charged:
    """Post a charge to the shop."""
    ctx.log.info("charge.asked")
    answer: Any = await ctx.http.service("shop").post("/charges", operation="charge", json=given.model_dump())
    return Charged(status=answer.status)


Pipeline("traced", charge)
