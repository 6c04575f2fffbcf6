"""What every program does with Temporal: wait for it, and run workflows."""

import asyncio
import logging
from dataclasses import replace
from typing import Any, Protocol

from temporalio.client import Client
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig
from temporalio.worker import (
    UnsandboxedWorkflowRunner,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowRunner,
)

from redrive import Redrive
from redrive.connection import connect_temporal
from redrive.contracts import KEEPS_END, RunEnd
from redrive.errors import NotConfigured, Unavailable
from redrive.logs import get_logger
from redrive.settings import Settings

log = get_logger(__name__)

CONNECT_INTERVAL = 2.0


class KeptEnds(Protocol):
    """Takes the ends of runs from workflows, from any thread, and learns which of them Temporal has taken."""

    def keep(self, workflow_run_id: str, end: RunEnd) -> None:
        """Take the end that a run is about to send."""

    def left(self, workflow_run_id: str, *, is_closed: bool | None) -> None:
        """Take that a workflow leaves the worker's memory.

        `is_closed`: whether Temporal has taken the end that this worker has sent; None if not known.
        """


class _Runner(UnsandboxedWorkflowRunner):
    """Tells when workflows leave. The SDK has no other way to learn that Temporal has taken a workflow's end."""

    def __init__(self, ends: KeptEnds) -> None:
        self._ends = ends

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        functions = {**det.extern_functions, KEEPS_END: self._ends.keep}
        instance = super().create_instance(replace(det, extern_functions=functions))
        activate = instance.activate

        def watched(act: Any) -> Any:
            for job in act.jobs:
                if job.HasField("remove_from_cache"):
                    self._ends.left(act.run_id, is_closed=_is_closed(job.remove_from_cache))
            return activate(act)

        instance.activate = watched  # type: ignore[method-assign]  # an instance wrapped whole would copy its methods
        return instance


def _is_closed(leaving: Any) -> bool | None:
    match leaving.reason:
        case leaving.WORKFLOW_EXECUTION_ENDING:
            return True
        case leaving.CACHE_FULL:
            return None
        case _:
            return False


def workflow_runner(ends: KeptEnds | None = None) -> WorkflowRunner:
    """Return the workflow runner, for workers and for the replay of stored histories."""
    # Temporal's sandbox would load the workflow's file again for each run, a fifth of a run's cost on the worker.
    # Tests replace its protection: what workflow files may import, and the replay of stored histories.
    return _Runner(ends) if ends else UnsandboxedWorkflowRunner()


async def connect_with_retries(settings: Settings, runtime: Runtime | None = None) -> Client:
    """Wait for Temporal: a worker may start before it, or while it restarts."""
    while True:
        try:
            return await connect_temporal(settings, runtime)
        except NotConfigured:
            raise
        except Unavailable as error:
            log.warning("worker.waiting", error=str(error))
            await asyncio.sleep(CONNECT_INTERVAL)


async def connect_redrive(settings: Settings) -> Redrive:
    """Wait for Temporal: a bridge may start before it, or while it restarts."""
    while True:
        try:
            return await Redrive.connect(settings)
        except Unavailable as error:
            log.warning("bridge.waiting", operation="temporal", error=str(error))
            await asyncio.sleep(CONNECT_INTERVAL)


def core_logging() -> LoggingConfig:
    """Return how the native part of Temporal's SDK logs: through us, because it logs inputs that do not fit."""
    forwarding = LogForwardingConfig(logging.getLogger("temporalio.core"), append_target_to_name=False)
    return LoggingConfig(filter=LoggingConfig.default.filter, forwarding=forwarding)


def log_through_us() -> None:
    """Make Temporal's SDK log through us. Before anything connects: it keeps the first runtime."""
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=core_logging())), error_if_already_set=False)
