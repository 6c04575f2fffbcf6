"""A module that ends a call which it has begun, also when it is told to stop: what a zombie is made of."""

import asyncio
from datetime import timedelta

from pydantic import BaseModel

from redrive import STEP, ModuleContext, NoJitter, Pipeline, module

# Only a lost heartbeat may end an attempt here: what is frozen is to outlive that, and nothing else.
POLICY = STEP.model_copy(
    update={"base": timedelta(milliseconds=10), "jitter": NoJitter(), "timeout": timedelta(minutes=5)}
)


class Nothing(BaseModel):
    """Nothing is needed."""


class Paid(BaseModel):
    """The number of the request, which the service gave it."""

    receipt: int


@module("pay", policy=POLICY, dedupe=True)
async def pay(ctx: ModuleContext, given: Nothing) -> Paid:
    """Call the service, and wait for its answer whatever happens."""
    service = ctx.http.service("cashier")
    call = asyncio.ensure_future(
        service.post("/", operation="charge", json={}, returns=Paid, timeout=timedelta(minutes=4))
    )
    while not call.done():
        try:
            await asyncio.shield(call)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            ctx.log.warning("pay.goes_on", times_told=task.cancelling() if task else 0)
    return call.result()


pay_fast = module("pay-fast", policy=POLICY, timeout=timedelta(seconds=5), dedupe=True, fast=True)(pay.function)

Pipeline("stubborn", pay)
Pipeline("stubborn-fast", pay_fast)
