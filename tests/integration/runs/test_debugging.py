"""A worker for a debugger, and what a worker says at its start about its modules."""

import asyncio
import time
from datetime import timedelta

import pytest
from structlog.testing import capture_logs
from temporalio.client import Client

from redrive import ModuleContext, Pipeline, Redrive, Registry, RunStatus
from redrive.settings import Settings
from redrive.worker import _warn_of_modules, running_worker
from tests.integration.runs.samples import Number, milliseconds, quick, settled


# The run's report of its end can be overdue when the loop goes on: Temporal cancels what is done already, and warns.
@pytest.mark.filterwarnings("ignore:Cannot find activity to cancel")
async def test_a_step_under_a_debugger_is_not_ended(settings: Settings, temporal: Client, registry: Registry) -> None:
    """It stops the whole worker for longer than its timeout, the stall limit and the heartbeats allow: one attempt.

    That the worker is blocked is not logged into the debugger's prompt.
    """
    at_once = most = 0

    @registry.module("slow", policy=quick(max_attempts=3, timeout=0.3, base=milliseconds(1)))
    async def slow(ctx: ModuleContext, given: Number) -> Number:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        time.sleep(11)  # noqa: ASYNC251 - as at a breakpoint
        await asyncio.sleep(0.5)
        at_once -= 1
        return Number(n=ctx.attempt)

    Pipeline("p", slow, registry=registry)
    hasty = settings.model_copy(update={"stall_limit": timedelta(seconds=1)})
    with capture_logs() as logged:
        async with running_worker(hasty, registry, debug=True):
            redrive = Redrive(temporal, task_queue=settings.task_queue, registry=registry)
            runs = [await redrive.start("p", {}) for _ in range(2)]
            views = [await settled(redrive, run.run_id) for run in runs]
    assert [(view.status, view.steps[0].attempt) for view in views] == [(RunStatus.SUCCESS, 1)] * 2
    assert most == 1
    assert "worker.blocked" not in {line["event"] for line in logged}


async def test_a_fast_step_under_a_debugger_is_not_ended(
    settings: Settings, temporal: Client, registry: Registry
) -> None:
    """The same for the attempt inside a workflow task."""

    @registry.module("slow", policy=quick(max_attempts=3, timeout=0.3), fast=True)
    async def slow(ctx: ModuleContext, given: Number) -> Number:
        await asyncio.sleep(1)
        return Number(n=ctx.attempt)

    Pipeline("p", slow, registry=registry)
    async with running_worker(settings, registry, debug=True):
        redrive = Redrive(temporal, task_queue=settings.task_queue, registry=registry)
        run = await redrive.start("p", {})
        view = await settled(redrive, run.run_id)
    assert (view.status, view.steps[0].attempt) == (RunStatus.SUCCESS, 1)


def test_a_worker_without_modules_and_with_misfits_warns() -> None:
    """Both would otherwise be noticed when a run waits, or fails."""
    registry = Registry()
    settings = Settings(modules=("mine",))
    with capture_logs() as logged:
        _warn_of_modules(settings, registry)
    assert [(line["event"], line["modules"]) for line in logged] == [("worker.no_modules", ("mine",))]

    @registry.module("first")
    async def first(ctx: ModuleContext, given: Number) -> Number:
        return given

    class Wrong(Number):
        first: str

    async def second(ctx: ModuleContext, given: Number) -> Number:
        return given

    second.__annotations__["given"] = Wrong
    Pipeline("p", first, registry.module("second")(second), registry=registry)
    with capture_logs() as logged:
        _warn_of_modules(settings, registry)
    assert [(line["event"], line["pipeline"]) for line in logged] == [("worker.pipeline_misfit", "p")]
    assert logged[0]["error"] == "step 'second' cannot read the output of 'first': first is of type object, not string"
