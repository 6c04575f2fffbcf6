"""What the tests of runs share: small models, quick policies, and waiting until a run stands still."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from redrive import (
    STEP,
    ModuleContext,
    NoJitter,
    Pipeline,
    Redrive,
    Registry,
    RetryPolicy,
    RunStatus,
    RunView,
    StepStatus,
)
from redrive.dead_letters import LetterId
from redrive.errors import RunCanceled, RunFailed
from tests.conftest import eventually

PARKED = {RunStatus.DLQ_PENDING, RunStatus.PARTIAL}


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


async def settled(redrive: Redrive, run_id: str) -> RunView:
    """Wait until a run has ended or waits for an operator, and return it."""

    async def ask() -> RunView | None:
        view = await redrive.status(run_id)
        return view if view.status.closed or view.status in PARKED else None

    return await eventually(ask, within=60)


async def run_until_settled(
    redrive: Redrive, pipeline: str, payload: Mapping[str, Any] | BaseModel | None = None
) -> RunView:
    """Start a run, wait until it has ended or is parked, and return it."""
    started = await redrive.start(pipeline, payload or {})
    return await settled(redrive, started.run_id)


async def discarded(redrive: Redrive, run_id: str, *, reason: str = "no use") -> RunView:
    """Wait until a run is parked, give it up, and return it when it has ended."""
    view = await settled(redrive, run_id)
    step = next(step.name for step in view.steps if step.status is StepStatus.DLQ)
    letter = LetterId(tenant=view.tenant, run_id=run_id, step=step)

    async def accepted() -> bool:
        # A run is seen as parked a moment before its dead letter is there.
        return (await redrive.dead_letters.discard(letter, requested_by="ada", reason=reason)).accepted

    await eventually(accepted)
    return await ended(redrive, run_id)


def add_good_pipeline(registry: Registry) -> None:
    """Register a pipeline that always works, to see that a worker still does."""

    @registry.module("good")
    async def good(ctx: ModuleContext, given: Number) -> Number:
        return Number(n=given.n + 1)

    Pipeline("good", good, registry=registry)
