from datetime import timedelta

from pydantic import BaseModel

from redrive import STEP, ModuleContext, NoJitter, Pipeline, Registry, RunStatus, StepStatus, Transient
from tests.conftest import WorkerFactory


class N(BaseModel):
    n: int


async def test_a_step_heals_after_retries(worker: WorkerFactory, registry: Registry) -> None:
    """A step that fails twice and then works is tried three times, and the run succeeds."""
    policy = STEP.model_copy(update={"base": timedelta(milliseconds=50), "jitter": NoJitter()})

    @registry.module("flaky", policy=policy)
    async def flaky(ctx: ModuleContext, given: N) -> N:
        if ctx.attempt < 3:
            raise Transient("not yet")
        return N(n=given.n + 1)

    Pipeline("p", flaky, registry=registry)
    async with worker() as running:
        started = await running.redrive.start("p", {"n": 1})
        result = await running.redrive.result(started.run_id)
        view = await running.redrive.status(started.run_id)
    assert result.output == {"n": 2}
    assert view.status is RunStatus.SUCCESS
    assert [step.status for step in view.steps] == [StepStatus.SUCCESS]
    assert view.steps[0].attempt == 3
    assert [attempt.error for attempt in view.steps[0].attempts] == ["not yet", "not yet"]
