"""What every program does with Temporal: wait for it, and run workflows."""

import asyncio
import logging

from temporalio.client import Client
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowRunner

from redrive.connection import connect_temporal
from redrive.errors import NotConfigured, Unavailable
from redrive.logs import get_logger
from redrive.settings import Settings

log = get_logger(__name__)

CONNECT_INTERVAL = 2.0


def workflow_runner() -> WorkflowRunner:
    """Return the workflow runner, for workers and for the replay of stored histories."""
    # Temporal's sandbox would load the workflow's file again for each run, a fifth of a run's cost on the worker.
    # Tests replace its protection: what workflow files may import, and the replay of stored histories.
    return UnsandboxedWorkflowRunner()


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


def core_logging() -> LoggingConfig:
    """Return how the native part of Temporal's SDK logs: through us, because it logs inputs that do not fit."""
    forwarding = LogForwardingConfig(logging.getLogger("temporalio.core"), append_target_to_name=False)
    return LoggingConfig(filter=LoggingConfig.default.filter, forwarding=forwarding)


def log_through_us() -> None:
    """Make Temporal's SDK log through us. Before anything connects: it keeps the first runtime."""
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=core_logging())), error_if_already_set=False)
