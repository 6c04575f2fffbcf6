"""A replay runs today's code, which may read more than the code that the run was started with."""

from typing import Any

import pytest
from pydantic import BaseModel

from redrive import ModuleContext, Pipeline, Registry, RunStatus, Terminal
from redrive.dead_letters import LetterId
from redrive.settings import Settings
from redrive.worker import running_worker
from tests.conftest import Running, WorkerFactory, eventually
from tests.integration.runs.samples import Number, run_until_settled


class Both(BaseModel):
    """The payload's number, and what the first step has returned."""

    n: int
    first: Number


def add_pipeline(registry: Registry, *, is_new: bool) -> None:
    """Add two steps; the second one fails in its old version, and reads the first one's output in its new one."""

    @registry.module("first")
    async def first(ctx: ModuleContext, given: Number) -> Number:
        return Number(n=given.n + 1)

    async def old(ctx: ModuleContext, given: Number) -> Number:
        raise Terminal("this needs what the first step has found")

    async def new(ctx: ModuleContext, given: Both) -> Number:
        return Number(n=given.n + given.first.n)

    Pipeline("p", first, registry.module("second")(new if is_new else old), registry=registry)


async def _replay(running: Running, letter: LetterId, edit: dict[str, Any] | None) -> bool:
    letters = running.redrive.dead_letters
    answer = await letters.replay(letter, requested_by="ada", reason="deployed", input_patch=edit)
    return answer.accepted


@pytest.mark.parametrize(("edit", "output"), [(None, 3), ({"n": 5}, 7)], ids=["as it is", "edited"])
async def test_a_replay_reads_what_todays_module_reads(
    worker: WorkerFactory, settings: Settings, registry: Registry, edit: dict[str, Any] | None, output: int
) -> None:
    """The run has the first step's output: the new code gets it."""
    add_pipeline(registry, is_new=False)
    async with worker() as running:
        view = await run_until_settled(running.redrive, "p", {"n": 1})
    assert view.status is RunStatus.DLQ_PENDING
    deployed = Registry()
    add_pipeline(deployed, is_new=True)
    letter = LetterId(tenant="default", run_id=view.run_id, step="second")
    async with running_worker(settings, deployed):
        assert await eventually(lambda: _replay(running, letter, edit))
        result = await running.redrive.result(view.run_id)
    assert (result.status, result.output) == (RunStatus.SUCCESS, {"n": output})
