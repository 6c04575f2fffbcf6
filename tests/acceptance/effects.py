"""Modules whose effects can be counted: each calls the service `sink` once, at a path that names run and step."""

from datetime import timedelta

from pydantic import BaseModel

from redrive import ModuleContext, Pipeline, RetryPolicy, module

# Outlasts a server's restart, whatever is killed.
PATIENT = RetryPolicy(
    base=timedelta(milliseconds=200),
    cap=timedelta(seconds=2),
    max_attempts=40,
    timeout=timedelta(seconds=3),
)


class Order(BaseModel):
    """Which run of the test it is."""

    number: int


class Done(BaseModel):
    """Nothing to tell."""


async def _effect(ctx: ModuleContext, order: Order) -> Done:
    path = f"/{order.number}/{ctx.step}"
    return await ctx.http.service("sink").post(path, operation="effect", json={}, returns=Done)


@module("first", policy=PATIENT)
async def first(ctx: ModuleContext, order: Order) -> Done:
    """Cause the first effect."""
    return await _effect(ctx, order)


@module("second", policy=PATIENT)
async def second(ctx: ModuleContext, order: Order) -> Done:
    """Cause the second effect."""
    return await _effect(ctx, order)


@module("third", policy=PATIENT)
async def third(ctx: ModuleContext, order: Order) -> Done:
    """Cause the third effect."""
    return await _effect(ctx, order)


Pipeline("effects", first, second, third)
Pipeline("fast-effects", first, second, third, fast=True)
