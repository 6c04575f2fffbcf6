"""Modules for a worker process that a test kills. Loaded by its name through REDRIVE_MODULES."""

import asyncio
from pathlib import Path

from pydantic import BaseModel

from redrive import STEP, ModuleContext, NoJitter, Pipeline, module
from tests.integration.runs.samples import milliseconds

POLICY = STEP.model_copy(update={"base": milliseconds(10), "jitter": NoJitter()})


class Nap(BaseModel):
    """Where to say that the first try has begun."""

    sign: str


class Woken(BaseModel):
    """Which try it was that came through."""

    attempt: int


@module("nap", policy=POLICY)
async def nap(ctx: ModuleContext, given: Nap) -> Woken:
    """Hang on the first try, return on the next."""
    if ctx.attempt == 1:
        Path(given.sign).touch()
        await asyncio.Event().wait()
    return Woken(attempt=ctx.attempt)


napping = Pipeline("napping", nap)
