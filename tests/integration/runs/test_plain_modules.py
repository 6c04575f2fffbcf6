"""Modules that are plain functions, and what modules share, on a real worker."""

import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import structlog
from pydantic import BaseModel

from redrive import AttemptEnded, Category, ModuleContext, Pipeline, Registry, RunStatus
from redrive.activities.module_threads import LEFT_LIMIT, ModuleThreads
from redrive.activities.run_step import HEARTBEAT_INTERVAL
from tests.conftest import WorkerFactory, eventually
from tests.integration.runs.samples import Number, add_good_pipeline, milliseconds, quick, run_until_settled, settled


class Seen(BaseModel):
    """What a function saw."""

    run_id: str
    n: int
    total: int


async def test_a_plain_function_is_a_step(worker: WorkerFactory, registry: Registry) -> None:
    """It has the context of its step, may block, and reaches what is async by `ctx.wait`."""

    @registry.module("plain")
    def plain(ctx: ModuleContext, given: Number) -> Seen:
        time.sleep(0.01)
        ctx.heartbeat()
        total = ctx.wait(ctx.counters.add("calls", 5))
        return Seen(run_id=structlog.contextvars.get_contextvars()["run_id"], n=given.n, total=total or 0)

    Pipeline("p", plain, registry=registry)
    async with worker() as running:
        run = await running.redrive.start("p", {"n": 3})
        result = await running.redrive.result(run.run_id)
    assert result.output == {"run_id": run.run_id, "n": 3, "total": 5}


async def test_plain_functions_run_side_by_side(worker: WorkerFactory, registry: Registry) -> None:
    """Two blocking steps meet; the worker's loop is free meanwhile."""
    both = threading.Barrier(2, timeout=30)

    @registry.module("meet")
    def meet(ctx: ModuleContext, given: Number) -> Number:
        both.wait()
        return given

    Pipeline("p", meet, registry=registry)
    async with worker() as running:
        runs = [await running.redrive.start("p", {"n": n}) for n in range(2)]
        views = [await settled(running.redrive, run.run_id) for run in runs]
    assert [view.status for view in views] == [RunStatus.SUCCESS] * 2


async def test_the_deadline_ends_the_attempt_and_not_the_thread(worker: WorkerFactory, registry: Registry) -> None:
    """The next attempt begins while the first function still runs; what that one returns does not count."""
    may_end, ends = threading.Event(), []

    @registry.module("slow", policy=quick(max_attempts=2, timeout=0.4, base=milliseconds(1)))
    def slow(ctx: ModuleContext, given: Number) -> Number:
        if ctx.attempt == 2:
            return Number(n=2)
        may_end.wait(30)
        try:
            ctx.heartbeat()
        except AttemptEnded:
            ends.append("told")
        return Number(n=1)

    Pipeline("p", slow, registry=registry)
    async with worker() as running:
        run = await running.redrive.start("p", {})
        result = await running.redrive.result(run.run_id)
        view = await running.redrive.status(run.run_id)
        may_end.set()

        async def told() -> bool:
            return ends == ["told"]

        await eventually(told)
    assert result.output == {"n": 2}
    assert [entry.category for entry in view.steps[0].attempts] == [Category.TIMEOUT]


async def test_a_long_plain_function_is_not_taken_for_dead(worker: WorkerFactory, registry: Registry) -> None:
    """The worker heartbeats while it blocks: longer than the heartbeat timeout is one attempt."""
    seconds = 4 * HEARTBEAT_INTERVAL.total_seconds()

    @registry.module("long", timeout=timedelta(seconds=60))
    def long(ctx: ModuleContext, given: Number) -> Number:
        time.sleep(seconds)
        return Number(n=ctx.attempt)

    Pipeline("p", long, registry=registry)
    async with worker() as running:
        view = await run_until_settled(running.redrive, "p")
    assert (view.status, view.steps[0].attempt) == (RunStatus.SUCCESS, 1)


async def test_a_canceled_run_does_not_wait_for_its_thread(worker: WorkerFactory, registry: Registry) -> None:
    """The run ends; the function ends later, by itself."""
    began, may_end = threading.Event(), threading.Event()

    @registry.module("stuck")
    def stuck(ctx: ModuleContext, given: Number) -> Number:
        began.set()
        may_end.wait(60)
        return given

    Pipeline("p", stuck, registry=registry)
    add_good_pipeline(registry)
    async with worker() as running:
        run = await running.redrive.start("p", {})

        async def has_begun() -> bool:
            return began.is_set()

        await eventually(has_begun)
        await running.redrive.cancel(run.run_id, reason="no use")
        view = await settled(running.redrive, run.run_id)
        good = await run_until_settled(running.redrive, "good")
        may_end.set()
    assert (view.status, good.status) == (RunStatus.CANCELED, RunStatus.SUCCESS)


def test_too_many_threads_left_behind_end_the_worker() -> None:
    """Those that return are no longer counted; at the limit the worker gives up, and another takes its steps."""
    ends: list[int] = []
    threads = ModuleThreads(1, give_up=lambda: ends.append(1))
    left: list[Future[Any]] = [Future() for _ in range(LEFT_LIMIT)]
    for running in left[:-1]:
        threads._leave(running)
    left[0].set_result(None)
    threads._leave(left[-1])
    assert ends == []
    threads._leave(Future())
    assert ends == [1]
    threads.close()


async def test_modules_share_a_resource(worker: WorkerFactory, registry: Registry) -> None:
    """It is started once, before the first step, typed where it is used, and stopped after the worker."""
    told: list[str] = []

    @registry.resource
    async def words() -> AsyncIterator[list[str]]:
        told.append("started")
        yield told
        told.append("stopped")

    @registry.module("first")
    async def first(ctx: ModuleContext, given: Number) -> Number:
        ctx.resource(words).append("first")
        return given

    @registry.module("second")
    def second(ctx: ModuleContext, given: Number) -> Number:
        ctx.resource(words).append("second")
        return given

    Pipeline("p", first, second, registry=registry)
    async with worker() as running:
        await run_until_settled(running.redrive, "p")
    assert told == ["started", "first", "second", "stopped"]
