"""Fast modules that kill their worker: before the second of three steps, or whenever they run."""

import os
import signal
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel

from redrive import ModuleContext, Pipeline, module
from redrive.policy import STEP

POLICY = STEP.model_copy(update={"base": timedelta(milliseconds=10), "timeout": timedelta(seconds=4)})


class Order(BaseModel):
    """Which run of the test it is, and the file that says that its worker was killed."""

    number: int
    killed: Path


class Done(BaseModel):
    """Nothing to tell."""


async def _effect(ctx: ModuleContext, order: Order) -> Done:
    path = f"/{order.number}/{ctx.step}"
    return await ctx.http.service("sink").post(path, operation="effect", json={}, returns=Done)


@module("before", policy=POLICY, fast=True)
async def before(ctx: ModuleContext, order: Order) -> Done:
    """Cause an effect."""
    return await _effect(ctx, order)


@module("stored", policy=POLICY, fast=True, dedupe=True)
async def stored(ctx: ModuleContext, order: Order) -> Done:
    """Cause an effect, once."""
    return await _effect(ctx, order)


@module("after", policy=POLICY, fast=True)
async def after(ctx: ModuleContext, order: Order) -> Done:
    """Cause an effect; the first time, the worker dies instead."""
    if not order.killed.exists():
        order.killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return await _effect(ctx, order)


@module("lethal", policy=POLICY.model_copy(update={"max_attempts": 1}), fast=True)
async def lethal(ctx: ModuleContext, order: Order) -> Done:
    """Kill the worker, always."""
    os.kill(os.getpid(), signal.SIGKILL)
    return Done()


Pipeline("killed-between", before, stored, after)
Pipeline("lethal", before, lethal)
