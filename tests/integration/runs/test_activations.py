"""Where a worker runs its workflows: on its loop, or in threads if some of them are not ours."""

import threading

import pytest
from temporalio import workflow
from temporalio.client import Client

from redrive import ModuleContext, Pipeline, Redrive, Registry
from redrive.settings import Settings
from redrive.worker import running_worker
from tests.integration.runs.samples import Number


@workflow.defn(name="AuthorsOwn")
class AuthorsOwn:
    """A workflow of a module author."""

    @workflow.run
    async def run(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("authors", [False, True])
async def test_only_workflows_of_module_authors_get_threads(
    settings: Settings, temporal: Client, registry: Registry, authors: bool
) -> None:
    """A hop to a thread for each activation costs up to a fifth of a worker's CPU; code that may block needs it."""

    @registry.module("m")
    async def m(ctx: ModuleContext, given: Number) -> Number:
        return given

    Pipeline("p", m, registry=registry)
    registry.workflows += [AuthorsOwn] if authors else []
    before = _workflow_threads()
    async with running_worker(settings, registry):
        redrive = Redrive(temporal, task_queue=settings.task_queue, registry=registry)
        run = await redrive.start("p", {})
        await redrive.result(run.run_id)
        assert bool(_workflow_threads() - before) == authors


def _workflow_threads() -> set[int | None]:
    return {thread.ident for thread in threading.enumerate() if thread.name.startswith("temporal_workflow_")}
