"""What the tests of runs share: small models, quick policies, and waiting for a run's end."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from redrive import STEP, ModuleContext, NoJitter, Pipeline, Redrive, Registry, RetryPolicy, RunView
from redrive.errors import RunCanceled, RunFailed


class Number(BaseModel):
    """The smallest document."""

    n: int = 0


class Blob(BaseModel):
    """Something of a chosen size."""

    data: str = ""


def milliseconds(count: float) -> timedelta:
    """Return so many milliseconds."""
    return timedelta(milliseconds=count)


def quick(**changes: Any) -> RetryPolicy:
    """Return the default policy with short, exact delays; with changes."""
    fields = {"base": milliseconds(30), "cap": milliseconds(1000), "jitter": NoJitter(), **changes}
    return RetryPolicy.model_validate({**STEP.model_dump(), **fields})


async def ended(redrive: Redrive, run_id: str) -> RunView:
    """Wait until a run has ended, however, and return it."""
    with suppress(RunFailed, RunCanceled):
        await redrive.result(run_id)
    return await redrive.status(run_id)


async def run_to_end(redrive: Redrive, pipeline: str, payload: Mapping[str, Any] | BaseModel | None = None) -> RunView:
    """Start a run, wait for its end and return it."""
    started = await redrive.start(pipeline, payload or {})
    return await ended(redrive, started.run_id)


def add_good_pipeline(registry: Registry) -> None:
    """Register a pipeline that always works, to see that a worker still does."""

    @registry.module("good")
    async def good(ctx: ModuleContext, given: Number) -> Number:
        return Number(n=given.n + 1)

    Pipeline("good", good, registry=registry)
