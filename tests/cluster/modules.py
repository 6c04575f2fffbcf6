"""The pipeline of the chaos run: three steps, each with an effect at a service that fails now and then."""

from datetime import timedelta

from pydantic import BaseModel

from redrive import ModuleContext, Pipeline, RetryPolicy, module

PIPELINE = "cluster"
STEPS = ("cluster-reserve", "cluster-charge", "cluster-ship")
FRAGILE = STEPS[1]

# A refusal (422) is terminal at once; what a killed worker or a lost connection costs is an attempt.
PATIENT = RetryPolicy(
    base=timedelta(milliseconds=200), cap=timedelta(seconds=2), max_attempts=1000, timeout=timedelta(seconds=5)
)


class Order(BaseModel):
    """Which run it is."""

    number: int


class Done(BaseModel):
    """Nothing to tell."""


async def _effect(ctx: ModuleContext, order: Order) -> Done:
    path = f"/{order.number}/{ctx.step}"
    return await ctx.http.service("sink").post(path, operation="effect", json={}, returns=Done)


MODULES = [module(name, policy=PATIENT)(_effect) for name in STEPS]
Pipeline(PIPELINE, *MODULES)
