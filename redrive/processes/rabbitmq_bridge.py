"""The process of the RabbitMQ bridge: it ingests messages, and may run the sweep.

Any number may run side by side: all ingest, one sweeps, and another takes over if that one dies. This is the
composition root: `bridges` knows neither workflows nor how a worker is built.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError
from temporalio.worker import Worker

from redrive.activities.maintenance import HEARTBEAT_INTERVAL, SweepActivities
from redrive.bridges.health import Health, health_app, serving
from redrive.bridges.rabbitmq.ingest import BROKER, DATABASE, RetryIngest
from redrive.bridges.rabbitmq.metrics import RetryMetrics
from redrive.bridges.rabbitmq.settings import RetrySettings
from redrive.bridges.rabbitmq.sweep import RetrySweeper
from redrive.connection import database_url
from redrive.contracts import DEFAULT_TENANT, SweepInput, Workflow
from redrive.logs import get_logger
from redrive.postgres.database import DATABASE_ERRORS, Database
from redrive.processes.program import on_stop_signals, run_program, say_ready
from redrive.processes.temporal import connect_with_retries, workflow_runner
from redrive.settings import Settings, read_environment
from redrive.store.messages.retry_queue import depth
from redrive.workflows.inputs import OneInput
from redrive.workflows.maintenance import RetrySweep

log = get_logger(__name__)

TEMPORAL = "temporal"
GAUGE_INTERVAL = 10.0
# A sweep that was ended, or that the server forgot, is started again after this.
ENSURE_INTERVAL = 15.0
STOP_TIMEOUT = 15.0


class RabbitBridge:
    """All parts of one process."""

    def __init__(self, settings: Settings, retry: RetrySettings, database: Database, tenant: str) -> None:
        url = retry.url(settings)
        self.metrics = RetryMetrics()
        self.health = Health(BROKER, DATABASE, TEMPORAL)
        self.ingest = RetryIngest(
            url,
            retry,
            database,
            tenant=tenant,
            metrics=self.metrics,
            health=self.health,
            redactor=settings.redactor(),
        )
        self._sweeper = RetrySweeper(url, retry, database, self.metrics)
        self._settings = settings
        self._retry = retry
        self._database = database
        self._tenant = tenant

    @property
    def sweep_id(self) -> str:
        """The id of the tenant's sweep, and of its task queue: only bridges to the same broker may run it."""
        return f"{self._retry.service_name}-{self._tenant}"

    def sweep_worker(self, client: Client) -> Worker:
        """Build the worker for the sweep."""
        return Worker(
            client,
            task_queue=self.sweep_id,
            workflows=[RetrySweep],
            activities=[SweepActivities(self._sweeper).sweep_retries],
            workflow_runner=workflow_runner(),
            interceptors=[OneInput()],
            build_id=self._settings.build_id,
            max_heartbeat_throttle_interval=timedelta(seconds=HEARTBEAT_INTERVAL),
            default_heartbeat_throttle_interval=timedelta(seconds=HEARTBEAT_INTERVAL),
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=1.5),
            graceful_shutdown_timeout=self._settings.shutdown_grace,
        )

    async def host_sweep(self) -> None:
        """Run a worker for the sweep, and make sure that the sweep runs."""
        client = await connect_with_retries(self._settings)
        async with self.sweep_worker(client):
            while True:
                await self.ensure_sweep(client)
                await asyncio.sleep(ENSURE_INTERVAL)

    async def ensure_sweep(self, client: Client) -> None:
        """Start the sweep unless it is running, here or elsewhere."""
        try:
            await client.start_workflow(
                Workflow.RETRY_SWEEP,
                SweepInput(tenant=self._tenant),
                id=self.sweep_id,
                task_queue=self.sweep_id,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                static_summary=f"sends the retries of tenant {self._tenant}",
            )
        except RPCError as error:
            # A running sweep continues without Temporal; only moving it to another process needs Temporal.
            self.health.down(TEMPORAL, error.message)
            log.warning("sweep.not_ensured", error=error.message)
        else:
            self.health.up(TEMPORAL)

    async def keep_depth(self) -> None:
        """Update the gauge of waiting messages."""
        while True:
            try:
                self.metrics.depth(await depth(await self._database.pool(), self._tenant))
            except DATABASE_ERRORS as error:
                self.health.down(DATABASE, str(error) or type(error).__name__)
            else:
                self.health.up(DATABASE)
            await asyncio.sleep(GAUGE_INTERVAL)

    async def run(self, until: asyncio.Event) -> None:
        """Run all parts until the event; work under way is finished first. An error of any part ends it."""
        ingest = asyncio.create_task(self.ingest.run())
        parts = [ingest, asyncio.create_task(self.host_sweep()), asyncio.create_task(self.keep_depth())]
        told = asyncio.create_task(until.wait())
        try:
            done, _ = await asyncio.wait({told, *parts}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {told}:
                task.result()
        finally:
            self.ingest.stop()
            for task in (told, *parts[1:]):
                task.cancel()
            await asyncio.wait({ingest}, timeout=STOP_TIMEOUT)
            ingest.cancel()
            await asyncio.gather(told, *parts, return_exceptions=True)


@contextlib.asynccontextmanager
async def open_bridge(settings: Settings, retry: RetrySettings, tenant: str) -> AsyncIterator[tuple[RabbitBridge, int]]:
    """Build a bridge, serve its health and metrics, and yield it with its HTTP port."""
    async with Database(database_url(settings)) as database:
        bridge = RabbitBridge(settings, retry, database, tenant)
        app = health_app(retry.service_name, bridge.health, bridge.metrics.registry)
        async with serving(app, retry.http_host, retry.http_port) as port:
            yield bridge, port


async def serve(settings: Settings, retry: RetrySettings, tenant: str) -> None:
    """Run a bridge until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    on_stop_signals(stop.set)
    async with open_bridge(settings, retry, tenant) as (bridge, port):
        log.info("bridge.started", source=retry.retry_queue, tenant_id=tenant, port=port)
        ready = asyncio.create_task(_say_ready(bridge, settings))
        try:
            await bridge.run(until=stop)
        finally:
            ready.cancel()
    log.info("bridge.stopped", source=retry.retry_queue)


async def _say_ready(bridge: RabbitBridge, settings: Settings) -> None:
    await bridge.health.been_well()
    log.info("bridge.ready")
    say_ready(settings.ready_file)


async def _serve_default(settings: Settings) -> None:
    await serve(settings, read_environment(RetrySettings), DEFAULT_TENANT)


def main() -> None:
    """Run the bridge as a program."""
    run_program("bridge", _serve_default, failed="bridge.failed")


if __name__ == "__main__":
    main()
