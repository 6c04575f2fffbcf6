"""What a run that succeeds costs in Temporal: held here, so that it cannot grow unnoticed."""

import pytest

from redrive import ModuleContext, Pipeline, Registry
from tests.bench.history_counts import counted
from tests.conftest import Running, WorkerFactory
from tests.integration.runs.samples import Number, milliseconds

# A worker that is late for its own queue adds a workflow task: the cheapest of some runs shows what the code asks for.
RUNS = 3


async def cheapest(running: Running, pipeline: str) -> tuple[int, int, int]:
    """Return workflow tasks, events and billable actions of the shortest history of some runs."""
    counts = []
    for _ in range(RUNS):
        started = await running.redrive.start(pipeline, {"n": 1})
        await running.redrive.result(started.run_id)
        history = await running.temporal.get_workflow_handle(started.run_id).fetch_history()
        counts.append(counted(history.events))
    best = min(counts, key=lambda count: count.events)
    return best.tasks, best.events, best.actions


@pytest.mark.parametrize(
    ("steps", "fast", "expected"),
    [(1, False, (2, 12, 3)), (3, False, (4, 24, 5)), (1, True, (1, 6, 2)), (3, True, (1, 8, 2))],
)
async def test_a_run_that_succeeds_costs_no_more_than_this(
    *, worker: WorkerFactory, registry: Registry, steps: int, fast: bool, expected: tuple[int, int, int]
) -> None:
    """Workflow tasks, events and actions: a task and six events for each step; fast steps share one task."""

    async def step(ctx: ModuleContext, given: Number) -> Number:
        return given

    modules = [registry.module(f"step-{n}", timeout=milliseconds(5000))(step) for n in range(steps)]
    Pipeline("p", *modules, fast=fast, registry=registry)
    async with worker() as running:
        assert await cheapest(running, "p") == expected
