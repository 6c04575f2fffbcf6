"""The pipeline that is hurt: a step that fails for good until its service is mended, and one after it."""

from datetime import timedelta

from pydantic import BaseModel

from redrive import ModuleContext, Pipeline, RetryPolicy, module
from redrive.contracts import FAST_TIMEOUT

PIPELINE, FAST_PIPELINE = "chaos", "chaos-fast"
FRAGILE, LATER = "chaos-charge", "chaos-ship"

# A refusal (422) is terminal at once; a worker that is killed costs an attempt, and that happens often here.
# The service answers within milliseconds; the rest is for a busy machine, and as long as a fast step may take.
PATIENT = RetryPolicy(
    base=timedelta(milliseconds=200), cap=timedelta(seconds=2), max_attempts=1000, timeout=FAST_TIMEOUT
)


class Order(BaseModel):
    """Which run it is."""

    number: int


class Done(BaseModel):
    """Nothing to tell."""


async def _effect(ctx: ModuleContext, order: Order) -> Done:
    path = f"/{order.number}/{ctx.step}"
    return await ctx.http.service("sink").post(path, operation="effect", json={}, returns=Done)


@module(FRAGILE, policy=PATIENT)
async def charge(ctx: ModuleContext, order: Order) -> Done:
    """Cause the effect that is refused at first."""
    return await _effect(ctx, order)


@module(LATER, policy=PATIENT)
async def ship(ctx: ModuleContext, order: Order) -> Done:
    """Cause the effect after it."""
    return await _effect(ctx, order)


Pipeline(PIPELINE, charge, ship)
Pipeline(FAST_PIPELINE, charge, ship, fast=True)
