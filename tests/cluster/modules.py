"""The pipelines of the chaos run: one of three steps, each with an effect that fails at times, and one of events."""

from datetime import timedelta

from pydantic import BaseModel

from redrive import Event, ModuleContext, Pipeline, RetryPolicy, module

PIPELINE = "cluster"
STEPS = ("cluster-reserve", "cluster-charge", "cluster-ship")
FRAGILE = STEPS[1]
EVENT_TYPE, EVENT_STEP = "cluster.seen", "cluster-note"
EFFECTS = (*STEPS, EVENT_STEP)

# A refusal (422) is terminal at once; what a killed worker or a lost connection costs is an attempt.
PATIENT = RetryPolicy(
    base=timedelta(milliseconds=200), cap=timedelta(seconds=2), max_attempts=1000, timeout=timedelta(seconds=5)
)


class Order(BaseModel):
    """Which run it is."""

    number: int


class Done(BaseModel):
    """Nothing to tell."""


class Seen(BaseModel):
    """What the step of an event reads."""

    event: Event[Order]


async def _effect(ctx: ModuleContext, order: Order) -> Done:
    path = f"/{order.number}/{ctx.step}"
    return await ctx.http.service("sink").post(path, operation="effect", json={}, returns=Done)


MODULES = [module(name, policy=PATIENT)(_effect) for name in STEPS]
Pipeline(PIPELINE, *MODULES)


@module(EVENT_STEP, policy=PATIENT)
async def note(ctx: ModuleContext, seen: Seen) -> Done:
    """Have the effect of an event."""
    return await _effect(ctx, seen.event.payload)


Pipeline("cluster-seen", note)
