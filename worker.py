"""The worker process: settings, then connections, then activities and workflows on one task queue.

Any number may run side by side; none keeps state that another needs.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import httpx
import structlog
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig
from temporalio.service import RPCError
from temporalio.worker import (
    FixedSizeSlotSupplier,
    Worker,
    WorkerDeploymentConfig,
    WorkerTuner,
)

from redrive.activities.alerts import AlertActivities, AlertWorkflows
from redrive.activities.breakpoints import open_at_modules
from redrive.activities.bulk import BulkActivities, BulkPlanActivities
from redrive.activities.catalog import CatalogActivities
from redrive.activities.commands import CommandActivities, CommandChecks
from redrive.activities.dead_letters import LetterRecords, LetterReports
from redrive.activities.maintenance import AuditAnchors, KeyActivities, RetentionActivities
from redrive.activities.module_threads import ModuleThreads
from redrive.activities.run_records import DatabaseRecords, RunEnds
from redrive.activities.run_step import HEARTBEAT_INTERVAL, StepActivities
from redrive.activities.service_probes import ServiceProbes
from redrive.activities.step_slots import StepSlots
from redrive.activities.worker_health import StallGuard, keep_gauges
from redrive.activities.workflow_tasks import WorkflowTasks
from redrive.client import Redrive
from redrive.connection import database_url
from redrive.contracts import SearchAttribute
from redrive.errors import InvalidInput
from redrive.fairness import keep_weights, overflow_queue, slots_to_reserve
from redrive.home import check_home
from redrive.http import new_http_client
from redrive.logs import get_logger
from redrive.metrics import BUCKETS, Metrics
from redrive.modules import DEFAULT_REGISTRY, Registry, authors_files, load_modules
from redrive.plugin.interceptors import ParkingInterceptor
from redrive.plugin.options import Options
from redrive.plugin.reports import ReportActivities
from redrive.postgres.database import DATABASE_ERRORS, Database
from redrive.processes.program import prepare, run_program, say_ready, until_signalled
from redrive.processes.temporal import connect_with_retries, core_logging, workflow_runner
from redrive.published_catalogs import Publication
from redrive.redaction.redactor import Redactor
from redrive.resources import Started, started
from redrive.schedules import keep_schedules
from redrive.settings import Settings, read_settings
from redrive.workflows.bulk_replay import BulkReplay
from redrive.workflows.dead_letter import DeadLetter, DeadLetterQueue, RaiseAlert
from redrive.workflows.debugging import LongSteps
from redrive.workflows.inputs import OneInput
from redrive.workflows.maintenance import AnchorAudit, ExpireKeys, PurgeRecords, RecordKey
from redrive.workflows.message_names import MessageNames
from redrive.workflows.module_run import ModuleRun
from redrive.workflows.queries import (
    ApproveBulk,
    DescribeBulk,
    DescribeModules,
    ListBulkItems,
    PlanBulk,
    ProbeServices,
    RecordCommand,
    ResolvePipeline,
)
from redrive.workflows.scheduled_run import ScheduledRun

log = get_logger(__name__)
ActivityFunction: TypeAlias = Callable[..., Any]

WORKFLOWS = [
    ModuleRun,
    ScheduledRun,
    DeadLetterQueue,
    DeadLetter,
    RaiseAlert,
    BulkReplay,
    ExpireKeys,
    RecordKey,
    PurgeRecords,
    AnchorAudit,
    DescribeModules,
    ProbeServices,
    RecordCommand,
    ResolvePipeline,
    PlanBulk,
    ApproveBulk,
    DescribeBulk,
    ListBulkItems,
]
# In workflows that module authors have this worker run, modules park, and nothing else does.
HOSTED = Options(workflows=(), children=False, tenant_attribute=SearchAttribute.TENANT, task_queue=None)
HOME_TIMEOUT = timedelta(seconds=3)
# After this the worker says that it is ready: it takes work already.
KEEP_TIMEOUT = timedelta(seconds=5)
# Workflow tasks and local activities at once, besides those of fast steps.
OTHER_TASKS = 100


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What activities use."""

    client: Client
    http: httpx.AsyncClient
    database: Database
    settings: Settings
    registry: Registry
    metrics: Metrics
    threads: ModuleThreads
    resources: Started
    debug: bool = False

    @functools.cached_property
    def redactor(self) -> Redactor:
        """The redactor of stored and logged texts."""
        return self.settings.redactor(self.registry.hidden_names())


def build_worker(tools: Tools, slots: StepSlots, ends: RunEnds) -> Worker:
    """Build a worker."""
    settings = tools.settings
    # A fast step holds one of each: runs without one must still find some.
    tasks = settings.max_concurrent_steps + OTHER_TASKS
    return Worker(
        tools.client,
        task_queue=settings.task_queue,
        workflows=[*WORKFLOWS, *tools.registry.workflows],
        activities=[
            *_run_activities(tools, slots, ends),
            *_letter_activities(tools, ends),
            *_bulk_activities(tools),
            *_report_activities(tools),
        ],
        workflow_runner=workflow_runner(ends),
        interceptors=[
            OneInput(),
            MessageNames(),
            *([ParkingInterceptor(HOSTED)] if tools.registry.workflows else []),
            *([LongSteps()] if tools.debug else []),
        ],
        # Our workflows are activated on the loop, which is all that this does: a hop to a thread and back for each
        # activation takes up to a fifth of the CPU. The watchdog looks after the loop. Workflows of module authors
        # may block it: they get Temporal's threads, and with them its detection of deadlocks.
        debug_mode=tools.debug or not tools.registry.workflows,
        # There is no external storage; with 1, payloads are not looked at by a task each.
        max_workflow_task_external_storage_concurrency=1,
        build_id=None if settings.deployment else settings.build_id,
        deployment_config=_deployment(settings),
        max_concurrent_activities=settings.max_concurrent_steps,
        max_concurrent_workflow_tasks=tasks,
        max_concurrent_local_activities=tasks,
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
        build_id=None if settings.deployment else settings.build_id,
        deployment_config=_deployment(settings),
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


def _deployment(settings: Settings) -> WorkerDeploymentConfig | None:
    """Return which version of a worker deployment this build is, if it is of one."""
    if settings.deployment is None:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(settings.deployment, settings.build_id),
        use_worker_versioning=True,
        # A parked run may wait for months: it moves on to the current build, which replays its history.
        default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
    )


def _run_activities(tools: Tools, slots: StepSlots, ends: RunEnds) -> list[ActivityFunction]:
    """Return the activities of runs: steps, keys, the catalog, and the maintenance of their records."""
    steps = _step_activities(tools, slots)
    catalog = CatalogActivities(tools.registry, tools.settings.build_id)
    settings = tools.settings
    probes = ServiceProbes(tools.http, settings.services, tools.redactor, private_addresses=settings.private_addresses)
    alerts = AlertActivities(tools.http, settings.alerts)
    tasks = WorkflowTasks(tools.client, _letter_reports(tools), tools.redactor)
    keys = KeyActivities(tools.client, tools.database, tools.redactor, alerts, tasks=tasks)
    return [
        steps.run_step,
        ends.record_end,
        catalog.describe_modules,
        catalog.resolve_pipeline,
        probes.probe_services,
        keys.expire_keys,
        keys.record_key,
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
        records=DatabaseRecords(tools.database),
        slots=slots,
        threads=tools.threads,
        resources=tools.resources,
        keeps_ends=True,
        debug=tools.debug,
    )


def _letter_records(tools: Tools) -> LetterRecords:
    return LetterRecords(tools.database, _alert_workflows(tools), tools.redactor, tools.metrics)


def _letter_reports(tools: Tools, ends: RunEnds | None = None) -> LetterReports:
    task_queue = tools.settings.task_queue
    return LetterReports(tools.client, _letter_records(tools), tools.redactor, task_queue=task_queue, ends=ends)


def _alert_workflows(tools: Tools) -> AlertWorkflows:
    settings = tools.settings
    return AlertWorkflows(tools.client, tools.database, task_queue=settings.task_queue, window=settings.alerts.window)


def _letter_activities(tools: Tools, ends: RunEnds) -> list[ActivityFunction]:
    """Return the activities of dead letters: from the report of a failure to the outcome of a command."""
    client, database, settings, redactor = tools.client, tools.database, tools.settings, tools.redactor
    alert_workflows, records, reports = _alert_workflows(tools), _letter_records(tools), _letter_reports(tools, ends)
    checks = CommandChecks(tools.registry, redactor)
    commands = CommandActivities(
        client,
        database,
        checks,
        redactor=redactor,
        metrics=tools.metrics,
        task_queue=settings.task_queue,
    )
    alerts = AlertActivities(tools.http, settings.alerts)
    return [
        reports.report_exhausted,
        reports.report_outcome,
        reports.hand_over_reports,
        records.record_reports,
        records.record_exhausted,
        records.record_outcome,
        records.record_refusal,
        commands.record_command,
        commands.record_continue,
        commands.pass_on_command,
        alerts.raise_alert,
        alert_workflows.take_suppressed,
    ]


def _report_activities(tools: Tools) -> Sequence[ActivityFunction]:
    """Return how workflows of module authors report what has failed in them."""
    if not tools.registry.workflows:
        return []
    return ReportActivities(task_queue=tools.settings.task_queue, redactor=lambda _: tools.redactor).functions


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
async def running_worker(
    settings: Settings, registry: Registry = DEFAULT_REGISTRY, *, debug: bool = False
) -> AsyncIterator[Worker]:
    """Connect and run a worker for as long as the context lasts.

    With `debug` it runs one step at a time, and no step is ended for taking long or for blocking the worker.
    """
    if debug:
        settings = settings.model_copy(update={"max_concurrent_steps": 1, "reserved_steps": 0})
    runtime = _runtime(settings)
    steps = settings.max_concurrent_steps
    async with _opened_tools(settings, registry, runtime, debug=debug) as tools:
        slots = StepSlots(steps, slots_to_reserve(steps, settings.reserved_steps))
        with contextlib.nullcontext() if debug else StallGuard(settings.stall_limit):
            async with (
                _published(tools),
                _run_ends(tools) as ends,
                build_worker(tools, slots, ends) as worker,
                build_overflow_worker(tools, slots),
            ):
                gauges = asyncio.create_task(keep_gauges(tools.database, tools.metrics)) if runtime else None
                try:
                    yield worker
                finally:
                    if gauges:
                        gauges.cancel()


@contextlib.asynccontextmanager
async def own_worker(settings: Settings | None = None, registry: Registry = DEFAULT_REGISTRY) -> AsyncIterator[Redrive]:
    """Run a worker in this process, and return a client: it begins the runs that the client starts.

    Such a run does not wait in a task queue, and costs Temporal a third less. If the worker has no room for it, or this
    process dies, it goes to any worker. So do runs of a worker deployment: Temporal chooses their version.
    Log lines are printed as the settings say, unless the program has configured structlog.
    """
    settings = settings or read_settings()
    if not structlog.is_configured():
        prepare(settings)
    _warn_of_modules(settings, registry)
    async with (
        running_worker(settings, registry) as worker,
        _kept(worker.client, settings),
        Redrive.on(worker.client, settings, registry, eager=settings.deployment is None) as redrive,
    ):
        yield redrive


@contextlib.asynccontextmanager
async def _opened_tools(
    settings: Settings, registry: Registry, runtime: Runtime | None, *, debug: bool
) -> AsyncIterator[Tools]:
    """Connect, and start what the modules share."""
    client = await connect_with_retries(settings, runtime)
    async with new_http_client() as http, Database(database_url(settings)) as database:
        await _check_home(client, database)
        with contextlib.closing(ModuleThreads(settings.max_concurrent_steps)) as threads:
            async with started(registry.resources) as resources:
                yield Tools(
                    client=client,
                    http=http,
                    database=database,
                    settings=settings,
                    registry=registry,
                    metrics=Metrics(runtime.metric_meter) if runtime else Metrics(),
                    threads=threads,
                    resources=resources,
                    debug=debug,
                )


@contextlib.asynccontextmanager
async def _run_ends(tools: Tools) -> AsyncIterator[RunEnds]:
    ends = RunEnds(tools.client, tools.database, tools.redactor, task_queue=tools.settings.task_queue)
    try:
        yield ends
    finally:
        await ends.finish()


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


@contextlib.asynccontextmanager
async def _kept(client: Client, settings: Settings) -> AsyncIterator[None]:
    """Keep what this worker needs in Temporal, beside its work: a server that is too busy for it is not waited for."""
    keeping = asyncio.create_task(_keep(client, settings))
    try:
        await asyncio.wait({keeping}, timeout=KEEP_TIMEOUT.total_seconds())
        yield
    finally:
        keeping.cancel()


async def _keep(client: Client, settings: Settings) -> None:
    """Create the schedules and set the tenants' weights. A worker that cannot is still useful: the next one tries."""
    try:
        await keep_schedules(client, settings.task_queue)
    except RPCError as error:
        log.warning("worker.schedule_not_kept", error=error.message[:300])
    try:
        await keep_weights(client, settings.task_queue, settings.tenant_weights)
    except RPCError as error:
        # Without them each tenant has one turn.
        log.warning("worker.weights_not_kept", error=error.message[:300])


def _warn_of_modules(settings: Settings, registry: Registry) -> None:
    """Log what would only be noticed when a run waits, or fails."""
    if not registry.modules:
        log.warning("worker.no_modules", modules=settings.modules)
    for pipeline, problem in registry.misfits():
        log.warning("worker.pipeline_misfit", pipeline=pipeline, error=problem)


async def serve(settings: Settings, *, debug: bool = False) -> None:
    """Run a worker until SIGTERM or SIGINT."""
    load_modules(settings.modules)
    _warn_of_modules(settings, DEFAULT_REGISTRY)
    if debug:
        open_at_modules()
        # At a breakpoint the worker stands still, and the SDK's core warns of each task that is overdue by then.
        logging.getLogger("temporalio.core").setLevel(logging.ERROR)
    async with (
        until_signalled() as stopped,
        running_worker(settings, debug=debug) as worker,
        _kept(worker.client, settings),
    ):
        log.info("worker.started", task_queue=settings.task_queue, modules=sorted(DEFAULT_REGISTRY.modules))
        say_ready(settings.ready_file, authors_files())
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
