"""The worker process: settings, then connections, then activities and workflows on one task queue.

Any number may run side by side; none keeps state that another needs.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import timedelta

import httpx
from temporalio.client import Client
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkflowRunner

from activities.alerts import AlertActivities
from activities.bulk import BulkActivities
from activities.bulk_plans import BulkPlanActivities
from activities.catalog import CatalogActivities
from activities.dead_letters import DeadLetterActivities
from activities.run_step import HEARTBEAT_INTERVAL, StepActivities
from activities.stalls import StallGuard
from activities.stock import keep_gauges
from redrive.connection import connect_temporal, database_url
from redrive.errors import InvalidInput, RedriveError, Unavailable
from redrive.http import new_http_client
from redrive.loading import load_modules
from redrive.logs import configure_logging, get_logger
from redrive.metrics import Metrics
from redrive.modules import DEFAULT_REGISTRY, Registry
from redrive.redaction import Redactor
from redrive.settings import Settings, read_settings
from store.database import Database
from workflows.bulk_questions import ApproveBulk, DescribeBulk, ListBulkItems, PlanBulk
from workflows.bulk_replay import BulkReplay
from workflows.catalog import DescribeModules, ResolvePipeline
from workflows.dead_letter import DeadLetter
from workflows.module_run import ModuleRun

log = get_logger(__name__)

WORKFLOWS = [
    ModuleRun,
    DeadLetter,
    DescribeModules,
    ResolvePipeline,
    BulkReplay,
    PlanBulk,
    ApproveBulk,
    DescribeBulk,
    ListBulkItems,
]
CONNECT_INTERVAL = 2.0
# A record waits for as long as Postgres is away: Temporal's own buckets end at 10 s.
BUCKETS = {"workflow_dlq_record_seconds": (0.05, 0.1, 0.25, 0.5, 1, 5, 30, 120, 600, 3600)}


def build_worker(
    client: Client,
    http: httpx.AsyncClient,
    database: Database,
    *,
    settings: Settings,
    registry: Registry,
    metrics: Metrics,
) -> Worker:
    """Put a worker together."""
    redactor = Redactor(settings.redacted_keys)
    steps = StepActivities(
        registry,
        http,
        services=settings.services,
        user_header=settings.user_header,
        generation=settings.build_id,
        redactor=redactor,
        metrics=metrics,
        database=database,
    )
    catalog = CatalogActivities(registry, settings.build_id)
    letters = DeadLetterActivities(
        client, database, registry, redactor=redactor, metrics=metrics, task_queue=settings.task_queue
    )
    alerts = AlertActivities(http, settings.alerts)
    plans = BulkPlanActivities(database, registry, redactor, approvals=settings.approvals)
    bulk = BulkActivities(
        client,
        database,
        registry,
        redactor=redactor,
        metrics=metrics,
        task_queue=settings.task_queue,
        approvals=settings.approvals,
    )
    return Worker(
        client,
        task_queue=settings.task_queue,
        workflows=WORKFLOWS,
        activities=[
            steps.run_step,
            catalog.describe_modules,
            catalog.resolve_pipeline,
            letters.report_exhausted,
            letters.signal_letter,
            letters.record_exhausted,
            letters.record_order,
            letters.record_outcome,
            letters.record_refusal,
            letters.record_continue,
            letters.load_letter,
            alerts.raise_alert,
            plans.plan_bulk,
            plans.approve_bulk,
            plans.describe_bulk,
            plans.list_bulk_items,
            bulk.open_bulk,
            bulk.advance_bulk,
            bulk.control_bulk,
            bulk.finish_bulk,
        ],
        workflow_runner=workflow_runner(),
        build_id=settings.build_id,
        max_concurrent_activities=settings.max_concurrent_steps,
        max_cached_workflows=settings.max_cached_runs,
        # After a kill -9, a run answers again after this instead of Temporal's 10 s.
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1.5),
        max_heartbeat_throttle_interval=HEARTBEAT_INTERVAL,
        graceful_shutdown_timeout=settings.shutdown_grace,
    )


def workflow_runner() -> WorkflowRunner:
    """Return what workflows run in here, and stored histories are replayed in."""
    # Temporal's sandbox would load the workflow's file anew for each run, a fifth of what a run costs the worker.
    # What it guards against is held by tests: what workflow files may import, and the replay of stored histories.
    return UnsandboxedWorkflowRunner()


@contextlib.asynccontextmanager
async def running_worker(settings: Settings, registry: Registry = DEFAULT_REGISTRY) -> AsyncIterator[Worker]:
    """Connect and run a worker for as long as the context lasts."""
    runtime = _runtime(settings)
    metrics = Metrics(runtime.metric_meter) if runtime else Metrics()
    client = await _connect(settings, runtime)
    async with new_http_client() as http, Database(database_url(settings)) as database:
        with StallGuard(settings.stall_limit):
            worker = build_worker(client, http, database, settings=settings, registry=registry, metrics=metrics)
            async with worker:
                gauges = asyncio.create_task(keep_gauges(database, metrics)) if runtime else None
                try:
                    yield worker
                finally:
                    if gauges:
                        gauges.cancel()


def _runtime(settings: Settings) -> Runtime | None:
    """Serve metrics where the settings say, if they do."""
    if settings.metrics_address is None:
        return None
    prometheus = PrometheusConfig(
        bind_address=settings.metrics_address, durations_as_seconds=True, histogram_bucket_overrides=BUCKETS
    )
    try:
        return Runtime(telemetry=TelemetryConfig(metrics=prometheus, attach_service_name=False))
    except ValueError as error:
        raise InvalidInput(f"REDRIVE_METRICS_ADDRESS={settings.metrics_address!r}: {error}") from error


async def _connect(settings: Settings, runtime: Runtime | None) -> Client:
    """Wait for Temporal: a worker that starts before it, or while it restarts, has nothing better to do."""
    while True:
        try:
            return await connect_temporal(settings, runtime)
        except Unavailable as error:
            log.warning("worker.waiting", error=str(error))
            await asyncio.sleep(CONNECT_INTERVAL)


async def serve(settings: Settings) -> None:
    """Run a worker until SIGTERM or SIGINT."""
    load_modules(settings.modules)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    stopping = asyncio.create_task(stop.wait())
    async with running_worker(settings):
        log.info("worker.started", task_queue=settings.task_queue, modules=sorted(DEFAULT_REGISTRY.modules))
        if settings.ready_file:
            settings.ready_file.touch()
        await stopping
        log.info("worker.stopping")
    log.info("worker.stopped")


def main() -> None:
    """Run the worker as a program."""
    code = 0
    configure_logging()
    try:
        settings = read_settings()
        configure_logging(settings.log_level, settings.log_format, Redactor(settings.redacted_keys))
        asyncio.run(serve(settings))
    except RedriveError as error:
        log.error("worker.failed", error=str(error), code=error.code)
        code = 1
    # Interpreter shutdown with Temporal's native threads alive can crash; there is nothing left to clean up.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
