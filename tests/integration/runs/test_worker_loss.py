"""A worker process that is killed in the middle of a step."""

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from temporalio.client import Client

from redrive import Category, Redrive, Registry, RunStatus
from redrive.settings import Settings
from tests.conftest import eventually
from tests.ready_programs import Forked, start_worker


@contextlib.asynccontextmanager
async def worker_process(settings: Settings) -> AsyncIterator[Forked]:
    """Run worker.py as a process of its own."""
    assert settings.database_url
    chosen = {
        "DATABASE_URL": settings.database_url.get_secret_value(),
        "TEMPORAL_ADDRESS": str(settings.temporal_address),
        "REDRIVE_TASK_QUEUE": settings.task_queue,
        "REDRIVE_MODULES": "tests.integration.runs.sleepers",
        "REDRIVE_LOG_LEVEL": "error",
    }
    process = await start_worker({**os.environ, **chosen}, Path(os.devnull))
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


async def test_a_step_whose_worker_was_killed_is_done_by_another(
    settings: Settings, temporal: Client, tmp_path: Path
) -> None:
    """The lost try is listed as Interrupted, and the next one succeeds elsewhere."""
    sign = tmp_path / "begun"
    redrive = Redrive(temporal, task_queue=settings.task_queue, registry=Registry())
    run_id = f"napping-{settings.task_queue}"
    order = {"pipeline": "napping", "payload": {"sign": str(sign)}}
    await temporal.start_workflow("ModuleRun", order, id=run_id, task_queue=settings.task_queue)

    async def begun() -> bool:
        return sign.exists()

    async with worker_process(settings) as process:
        await eventually(begun)
        process.kill()
        await process.wait()
    async with worker_process(settings):
        result = await redrive.result(run_id)
    assert result.status is RunStatus.SUCCESS
    assert result.output == {"attempt": 2}
    (entry,) = result.steps[0].attempts
    assert (entry.attempt, entry.category, entry.error_type) == (1, Category.TIMEOUT, "Interrupted")
