"""The worker process: settings, then connections, then activities and workflows on one task queue.

Any number may run side by side; none keeps state that another needs.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import httpx
from temporalio.client import Client
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig
from temporalio.service import RPCError
from temporalio.worker import (
    FixedSizeSlotSupplier,
    Worker,
    WorkerTuner,
)

from redrive.activities.alerts import AlertActivities
from redrive.activities.audit_anchors import AuditAnchors
from redrive.activities.backlog_gauges import keep_gauges
from redrive.activities.bulk import BulkActivities
from redrive.activities.bulk_plans import BulkPlanActivities
from redrive.activities.catalog import CatalogActivities
from redrive.activities.command_checks import CommandChecks
from redrive.activities.commands import CommandActivities
from redrive.activities.dead_letter_records import LetterRecords
from redrive.activities.dead_letter_signals import LetterSignals
from redrive.activities.follow_ups import FollowUps
from redrive.activities.keys import KeyActivities
from redrive.activities.loop_watchdog import StallGuard
from redrive.activities.retention import RetentionActivities
from redrive.activities.run_ends import RunEnds
from redrive.activities.run_step import HEARTBEAT_INTERVAL, StepActivities
from redrive.activities.step_slots import StepSlots
from redrive.connection import database_url
from redrive.errors import InvalidInput
from redrive.fairness import overflow_queue, slots_to_reserve
from redrive.home import check_home
from redrive.http import new_http_client
from redrive.logs import get_logger
from redrive.metrics import Metrics
from redrive.module_files import load_modules
from redrive.modules import DEFAULT_REGISTRY, Registry
from redrive.postgres.database import DATABASE_ERRORS, Database
from redrive.processes.program import run_program, say_ready, until_signalled
from redrive.processes.temporal import connect_with_retries, core_logging, workflow_runner
from redrive.published_catalogs import Publication
from redrive.redaction.redactor import Redactor
from redrive.schedules import keep_schedules
from redrive.settings import Settings
from redrive.weights import keep_weights
from redrive.workflows.alert_follow_up import AlertFollowUp
from redrive.workflows.anchor_audit import AnchorAudit
from redrive.workflows.bulk_queries import ApproveBulk, DescribeBulk, ListBulkItems, PlanBulk
from redrive.workflows.bulk_replay import BulkReplay
from redrive.workflows.catalog import DescribeModules, ResolvePipeline
from redrive.workflows.dead_letter import DeadLetter
from redrive.workflows.expire_keys import ExpireKeys
from redrive.workflows.module_run import ModuleRun
from redrive.workflows.purge_records import PurgeRecords
from redrive.workflows.single_input import OneInput

log = get_logger(__name__)
ActivityFunction: TypeAlias = Callable[..., Any]

WORKFLOWS = [
    ModuleRun,
    DeadLetter,
    AlertFollowUp,
    BulkReplay,
    ExpireKeys,
    PurgeRecords,
    AnchorAudit,
    DescribeModules,
    ResolvePipeline,
    PlanBulk,
    ApproveBulk,
    DescribeBulk,
    ListBulkItems,
]
HOME_TIMEOUT = timedelta(seconds=3)
# A record waits as long as Postgres is down: Temporal's own buckets end at 10 s.
BUCKETS = {"workflow_dlq_record_seconds": (0.05, 0.1, 0.25, 0.5, 1, 5, 30, 120, 600, 3600)}


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What activities use."""

    client: Client
    http: httpx.AsyncClient
    database: Database
    settings: Settings
    registry: Registry
    metrics: Metrics

    @property
    def redactor(self) -> Redactor:
        """The redactor of stored and logged texts."""
        return self.settings.redactor()


def build_worker(tools: Tools, slots: StepSlots) -> Worker:
    """Build a worker."""
    settings = tools.settings
    return Worker(
        tools.client,
        task_queue=settings.task_queue,
        workflows=WORKFLOWS,
        activities=[*_run_activities(tools, slots), *_letter_activities(tools), *_bulk_activities(tools)],
        workflow_runner=workflow_runner(),
        interceptors=[OneInput()],
        build_id=settings.build_id,
        max_concurrent_activities=settings.max_concurrent_steps,
        max_cached_workflows=settings.max_cached_runs,
        # After a kill -9, a run answers again after this instead of Temporal's 10 s.
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1.5),
        max_heartbeat_throttle_interval=HEARTBEAT_INTERVAL,
        graceful_shutdown_timeout=settings.shutdown_grace,
    )


def build_overflow_worker(tools: Tools, slots: StepSlots) -> Worker:
    """Build the worker for steps that found no slot: it has its own queue, and polls while a common slot is free."""
    settings = tools.settings
    fixed = FixedSizeSlotSupplier(1)
    return Worker(
        tools.client,
        task_queue=overflow_queue(settings.task_queue),
        activities=[_step_activities(tools, slots).run_step],
        build_id=settings.build_id,
        tuner=WorkerTuner.create_composite(
            workflow_supplier=fixed,
            activity_supplier=slots.overflow,
            local_activity_supplier=fixed,
            nexus_supplier=fixed,
        ),
        # A step may arrive from a poll after all slots have been taken.
        max_concurrent_activity_task_polls=1,
        max_heartbeat_throttle_interval=HEARTBEAT_INTERVAL,
        graceful_shutdown_timeout=settings.shutdown_grace,
    )


def _run_activities(tools: Tools, slots: StepSlots) -> list[ActivityFunction]:
    """Return the activities of runs: steps, keys, the catalog, and the maintenance of their records."""
    steps = _step_activities(tools, slots)
    catalog = CatalogActivities(tools.registry, tools.settings.build_id)
    keys = KeyActivities(tools.client, tools.database, tools.redactor)
    return [
        steps.run_step,
        RunEnds(tools.database, tools.redactor).record_end,
        catalog.describe_modules,
        catalog.resolve_pipeline,
        catalog.read_inputs,
        keys.expire_keys,
        RetentionActivities(tools.database, tools.settings.retention).purge,
        AuditAnchors(tools.database, tools.http, tools.settings.audit_anchor).anchor_audit,
    ]


def _step_activities(tools: Tools, slots: StepSlots) -> StepActivities:
    settings = tools.settings
    return StepActivities(
        tools.registry,
        tools.http,
        services=settings.services,
        user_header=settings.user_header,
        private_addresses=settings.private_addresses,
        build_id=settings.build_id,
        redactor=tools.redactor,
        metrics=tools.metrics,
        database=tools.database,
        slots=slots,
    )


def _letter_activities(tools: Tools) -> list[ActivityFunction]:
    """Return the activities of dead letters: from the report of a failure to the outcome of a command."""
    client, database, settings, redactor = tools.client, tools.database, tools.settings, tools.redactor
    signals = LetterSignals(client, redactor, task_queue=settings.task_queue)
    follow_ups = FollowUps(client, database, task_queue=settings.task_queue, window=settings.alerts.window)
    records = LetterRecords(database, follow_ups, redactor, tools.metrics)
    checks = CommandChecks(client, tools.registry, redactor, task_queue=settings.task_queue)
    commands = CommandActivities(client, database, checks, redactor, tools.metrics)
    alerts = AlertActivities(tools.http, settings.alerts)
    return [
        signals.report_exhausted,
        signals.signal_letter,
        records.record_exhausted,
        records.record_outcome,
        records.record_refusal,
        records.record_continue,
        records.load_letter,
        commands.record_command,
        commands.check_command,
        alerts.raise_alert,
        follow_ups.take_suppressed,
    ]


def _bulk_activities(tools: Tools) -> list[ActivityFunction]:
    """Return the activities of bulk operations: their plans and their execution."""
    approvals = tools.settings.approvals
    plans = BulkPlanActivities(tools.database, tools.registry, tools.redactor, approvals=approvals)
    bulk = BulkActivities(
        tools.client,
        tools.database,
        tools.registry,
        redactor=tools.redactor,
        metrics=tools.metrics,
        task_queue=tools.settings.task_queue,
        approvals=approvals,
    )
    return [
        plans.plan_bulk,
        plans.approve_bulk,
        plans.describe_bulk,
        plans.list_bulk_items,
        bulk.open_bulk,
        bulk.advance_bulk,
        bulk.control_bulk,
        bulk.finish_bulk,
    ]


@contextlib.asynccontextmanager
async def running_worker(settings: Settings, registry: Registry = DEFAULT_REGISTRY) -> AsyncIterator[Worker]:
    """Connect and run a worker for as long as the context lasts."""
    runtime = _runtime(settings)
    metrics = Metrics(runtime.metric_meter) if runtime else Metrics()
    client = await connect_with_retries(settings, runtime)
    async with new_http_client() as http, Database(database_url(settings)) as database:
        await _check_home(client, database)
        with StallGuard(settings.stall_limit):
            tools = Tools(
                client=client, http=http, database=database, settings=settings, registry=registry, metrics=metrics
            )
            slots = StepSlots(
                settings.max_concurrent_steps,
                slots_to_reserve(settings.max_concurrent_steps, settings.reserved_steps),
            )
            async with (
                _published(tools),
                build_worker(tools, slots) as worker,
                build_overflow_worker(tools, slots),
            ):
                gauges = asyncio.create_task(keep_gauges(database, metrics)) if runtime else None
                try:
                    yield worker
                finally:
                    if gauges:
                        gauges.cancel()


async def _check_home(client: Client, database: Database) -> None:
    """Refuse to work on another namespace's records. A database that is down now is checked by the sweep."""
    try:
        await database.deadline_pool.ask(lambda session: check_home(client, session), HOME_TIMEOUT)
    except DATABASE_ERRORS as error:
        log.warning("worker.home_not_checked", error_type=type(error).__name__, error=str(error))


@contextlib.asynccontextmanager
async def _published(tools: Tools) -> AsyncIterator[None]:
    """Publish what this worker can run, before it takes its first task if the database answers by then."""
    settings = tools.settings
    publication = Publication(
        tools.database.deadline_pool,
        tools.registry,
        namespace=tools.client.namespace,
        task_queue=settings.task_queue,
        build_id=settings.build_id,
    )
    keeping = asyncio.create_task(publication.keep())
    try:
        await publication.tried.wait()
        yield
    finally:
        keeping.cancel()


def _runtime(settings: Settings) -> Runtime | None:
    """Serve metrics if the settings name an address."""
    if settings.metrics_address is None:
        return None
    prometheus = PrometheusConfig(
        bind_address=settings.metrics_address, durations_as_seconds=True, histogram_bucket_overrides=BUCKETS
    )
    try:
        return Runtime(telemetry=TelemetryConfig(metrics=prometheus, logging=core_logging(), attach_service_name=False))
    except ValueError as error:
        raise InvalidInput(f"REDRIVE_METRICS_ADDRESS={settings.metrics_address!r}: {error}") from error


async def _keep_schedules(client: Client, task_queue: str) -> None:
    """Create the schedules. A worker that cannot is still useful: the next one tries again."""
    try:
        await keep_schedules(client, task_queue)
    except RPCError as error:
        log.warning("worker.schedule_not_kept", error=error.message[:300])


async def _keep_weights(client: Client, settings: Settings) -> None:
    """Set the tenants' weights in Temporal. Without them each tenant has one turn."""
    try:
        await keep_weights(client, settings.task_queue, settings.tenant_weights)
    except RPCError as error:
        log.warning("worker.weights_not_kept", error=error.message[:300])


async def serve(settings: Settings) -> None:
    """Run a worker until SIGTERM or SIGINT."""
    load_modules(settings.modules)
    async with until_signalled() as stopped, running_worker(settings) as worker:
        await _keep_schedules(worker.client, settings.task_queue)
        await _keep_weights(worker.client, settings)
        log.info("worker.started", task_queue=settings.task_queue, modules=sorted(DEFAULT_REGISTRY.modules))
        say_ready(settings.ready_file)
        try:
            await asyncio.Event().wait()
        finally:
            if stopped.is_set():
                log.info("worker.stopping")
    log.info("worker.stopped")


def main() -> None:
    """Run the worker as a program."""
    run_program("worker", serve, failed="worker.failed")


if __name__ == "__main__":
    main()
