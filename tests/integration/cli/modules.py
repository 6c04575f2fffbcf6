"""Modules for the command line's tests: one waits until stopped, one refuses, one heals, one lingers."""

import asyncio
from datetime import timedelta

from pydantic import BaseModel

from redrive import ModuleContext, Pipeline, RetryPolicy, Terminal, Transient, module

QUICK = RetryPolicy(base=timedelta(milliseconds=300), cap=timedelta(seconds=1), max_attempts=3, timeout=timedelta(30))
LONG = QUICK.model_copy(update={"base": timedelta(minutes=5), "cap": timedelta(minutes=5), "max_attempts": 2})


class Nothing(BaseModel):
    """No fields."""


@module("wait", policy=QUICK)
async def wait(ctx: ModuleContext, given: Nothing) -> Nothing:
    """Wait until somebody cancels the run."""
    await asyncio.sleep(3600)
    return given


@module("refuse", policy=QUICK)
async def refuse(ctx: ModuleContext, given: Nothing) -> Nothing:
    """Fail for good."""
    raise Terminal("the [red]card[/red] is stolen")


@module("heal", policy=QUICK)
async def heal(ctx: ModuleContext, given: Nothing) -> Nothing:
    """Fail once, then work."""
    if ctx.attempt == 1:
        raise Transient("the terminal is restarting")
    return given


@module("linger", policy=LONG)
async def linger(ctx: ModuleContext, given: Nothing) -> Nothing:
    """Fail, and wait long before the next try."""
    raise Transient("the terminal is restarting")


@module("dash", policy=QUICK, timeout=timedelta(seconds=2), fast=True)
async def dash(ctx: ModuleContext, given: Nothing) -> Nothing:
    """Be quick."""
    return given


Pipeline("dash", dash, refuse)
Pipeline("wait", wait)
Pipeline("refuse", refuse)
Pipeline("heal", heal)
Pipeline("linger", linger)
