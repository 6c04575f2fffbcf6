"""What every program does the same way with Temporal: wait for it, and run workflows."""

import asyncio

from temporalio.client import Client
from temporalio.runtime import Runtime
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowRunner

from redrive.connection import connect_temporal
from redrive.errors import Unavailable
from redrive.logs import get_logger
from redrive.settings import Settings

log = get_logger(__name__)

CONNECT_INTERVAL = 2.0


def workflow_runner() -> WorkflowRunner:
    """Return what workflows run in here, and stored histories are replayed in."""
    # Temporal's sandbox would load the workflow's file anew for each run, a fifth of what a run costs the worker.
    # What it guards against is held by tests: what workflow files may import, and the replay of stored histories.
    return UnsandboxedWorkflowRunner()


async def connect_patiently(settings: Settings, runtime: Runtime | None = None) -> Client:
    """Wait for Temporal: a worker that starts before it, or while it restarts, has nothing better to do."""
    while True:
        try:
            return await connect_temporal(settings, runtime)
        except Unavailable as error:
            log.warning("worker.waiting", error=str(error))
            await asyncio.sleep(CONNECT_INTERVAL)
