"""The work of the maintenance workflows: the sweep over keys, the purge, anchors of the audit log, the retry sweep.

The sweep over runs and keys settles those whose end was never recorded, deletes expired keys, and deletes retries that
nobody will end. The purge deletes closed records when they are older than the settings allow. Heads of the audit log
are recorded outside of it: in the log output and, if set, in a file and at a webhook.
"""

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Protocol

import httpx
from pydantic_core import to_json
from temporalio import activity
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.service import RPCError, RPCStatusCode

from redrive.activities.alerts import post_signed
from redrive.activities.workflow_tasks import WorkflowTasks
from redrive.contracts import Activity, AnchorMark, KeySweep, PurgeReport, RunStatus, SweepInput
from redrive.home import check_home
from redrive.idempotency.claims import ClaimRequest, Settlement, without_secrets
from redrive.idempotency.postgres_claims import settle_key
from redrive.idempotency.starts import outcome_of
from redrive.logs import get_logger
from redrive.postgres.database import Database
from redrive.postgres.tenancy import Pool
from redrive.reconcile import Reconciliation
from redrive.redaction.redactor import Redactor
from redrive.settings import AnchorSettings, RetentionSettings
from redrive.store.audit import SYSTEM, Head, grown_heads
from redrive.store.keys import KeyRow, delete_expired, list_unheard, touch_keys
from redrive.store.retention import AuditNotWhole, Purge, purge_tenant, tenants
from redrive.store.runs import close_run, delete_unheard, list_unheard_runs, touch_runs
from redrive.visibility import execution_status

BATCH: Final = 1000
CHECKED_AT_ONCE: Final = 200
# The maximum number of runs that one sweep asks for; the next sweep takes the others.
MOST_CHECKED: Final = 5000
QUIET: Final = timedelta(minutes=1)
_HEADS_A_POST: Final = 500
HEARTBEAT_INTERVAL: Final = 1.0
# The time for a batch that is being sent when the sweep is canceled.
GRACE: Final = 30.0

log = get_logger(__name__)


class KeyActivities:
    """Maintain keys."""

    def __init__(
        self,
        client: Client,
        database: Database,
        redactor: Redactor,
        quiet: timedelta = QUIET,
        tasks: WorkflowTasks | None = None,
    ) -> None:
        self._client = client
        self._tasks = tasks
        self._database = database
        self._redactor = redactor
        self._quiet = quiet

    @activity.defn(name=Activity.EXPIRE_KEYS)
    async def expire_keys(self) -> KeySweep:
        """Do one sweep. It may be interrupted anywhere: the next sweep continues."""
        pool = await self._database.pool()
        await check_home(self._client, pool)
        sweep = KeySweep(
            runs=await self._settle_runs(), settled=await self._settle_unheard(), deleted=await self._delete_expired()
        )
        if self._tasks:
            await self._tasks.sweep(pool)
        await self._reconcile(pool)
        await delete_unheard(pool)
        log.info("key.swept", runs=sweep.runs, settled=sweep.settled, deleted=sweep.deleted)
        return sweep

    async def _reconcile(self, pool: Pool) -> None:
        """Repair what a crash has left: commands that never reached their run, reports that reached no record."""
        async with heartbeats():
            report = await Reconciliation(self._client, pool, repair=True).run(None)
        for problem in report.problems:
            facts = {
                "tenant_id": problem.tenant,
                "run_id": problem.run_id,
                "step": problem.step,
                "kind": problem.kind.value,
                "reason": problem.about,
            }
            if problem.repaired:
                log.info("stores.repaired", **facts)
            else:
                log.error("stores.disagree", **facts)

    async def _settle_runs(self) -> int:
        """Ask Temporal for runs whose rows have long been open: the database was down when they ended."""
        pool, settled = await self._database.pool(), 0
        for _ in range(MOST_CHECKED // CHECKED_AT_ONCE):
            rows = await list_unheard_runs(pool, self._quiet, CHECKED_AT_ONCE)
            still_open = []
            for row in rows:
                activity.heartbeat()
                description = await self._description(row.run_id)
                status = execution_status(description) if description else None
                if description and status and status.closed:
                    await close_run(pool, row, status, description.close_time)
                    settled += 1
                else:
                    still_open.append(row)
            await touch_runs(pool, still_open)
            if len(rows) < CHECKED_AT_ONCE:
                break
        return settled

    async def _settle_unheard(self) -> int:
        """Ask Temporal for runs whose keys have long been in process: the report of their end may have been lost."""
        pool, settled = await self._database.pool(), 0
        for _ in range(MOST_CHECKED // CHECKED_AT_ONCE):
            rows = await list_unheard(pool, self._quiet, CHECKED_AT_ONCE)
            still_open: dict[str, list[str]] = defaultdict(list)
            for row in rows:
                activity.heartbeat()
                end = await self._end(row)
                if end is None:
                    still_open[row.tenant].append(row.key)
                else:
                    await settle_key(pool, _request(row), end)
                    settled += 1
            for tenant, keys in still_open.items():
                await touch_keys(pool, tenant, keys)
            if len(rows) < CHECKED_AT_ONCE:
                break
        return settled

    async def _end(self, row: KeyRow) -> Settlement | None:
        """Return how a key's run ended; None while it is open, or may still be started."""
        description = await self._description(row.run_id)
        if description is None:
            if row.expires_at > datetime.now(UTC):
                return None
            return Settlement(
                status=RunStatus.FAILED, error="Temporal has no such run: it was never started, or is gone"
            )
        status = execution_status(description)
        if not status.closed:
            return None
        return await without_secrets(await outcome_of(self._client, row.run_id, status), self._redactor)

    async def _description(self, run_id: str) -> WorkflowExecutionDescription | None:
        try:
            return await self._client.get_workflow_handle(run_id).describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return None

    async def _delete_expired(self) -> int:
        """Delete what has expired, once Temporal has also forgotten it: then the first generation's run id is free."""
        pool, deleted = await self._database.pool(), 0
        retention = await self._retention()
        while count := await delete_expired(pool, retention, BATCH):
            deleted += count
            activity.heartbeat()
        return deleted

    async def _retention(self) -> timedelta:
        """Return Temporal's retention for closed runs."""
        answer = await self._client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=self._client.namespace)
        )
        return answer.config.workflow_execution_retention_ttl.ToTimedelta()


def _request(row: KeyRow) -> ClaimRequest:
    return ClaimRequest.model_validate(row.model_dump(include=set(ClaimRequest.model_fields)))


class RetentionActivities:
    """Purge records."""

    def __init__(self, database: Database, keep: RetentionSettings) -> None:
        self._database = database
        self._wanted = Purge(keep=keep, who=SYSTEM)

    @activity.defn(name=Activity.PURGE)
    async def purge(self) -> PurgeReport:
        """Purge all tenants. It may be interrupted anywhere: the next purge continues."""
        deleted: Counter[str] = Counter()
        for tenant in await tenants(await self._database.pool()):
            try:
                await self._purge_tenant(tenant, deleted)
            except AuditNotWhole as error:
                log.error("audit.broken", tenant_id=tenant, error=str(error))
        return PurgeReport(deleted=dict(deleted))

    async def _purge_tenant(self, tenant: str, deleted: Counter[str]) -> None:
        own: Counter[str] = Counter()
        async for batch in purge_tenant(await self._database.pool(), tenant, self._wanted):
            own[batch.kind.value] += batch.count
            deleted[batch.kind.value] += batch.count
            activity.heartbeat()
        for kind, count in own.items():
            if count:
                log.info("retention.purged", tenant_id=tenant, operation=kind, deleted=count)


class AuditAnchors:
    """Record heads. Recording one twice is harmless."""

    def __init__(self, database: Database, http: httpx.AsyncClient, settings: AnchorSettings) -> None:
        self._database = database
        self._http = http
        self._settings = settings

    @activity.defn(name=Activity.ANCHOR_AUDIT)
    async def anchor_audit(self, last: AnchorMark | None) -> AnchorMark:
        """Record the heads of the logs that have grown since the last time."""
        heads, since = await grown_heads(await self._database.pool(), last.since if last else None)
        at = datetime.now(UTC)
        for head in heads:
            log.info("audit.head", tenant_id=head.tenant, head=str(head))
        lines = [_line(head, at) for head in heads]
        if self._settings.file and lines:
            await asyncio.to_thread(_append, self._settings.file, lines)
        for chunk in _chunks(lines) if self._settings.webhook_url else ():
            body = to_json({"heads": chunk})
            await post_signed(
                self._http, str(self._settings.webhook_url), body, self._settings.webhook_secret, what="audit"
            )
        return AnchorMark(since=since, heads=len(heads))


def _line(head: Head, at: datetime) -> dict[str, Any]:
    return {"at": at, "tenant": head.tenant, "head": str(head)}


def _append(file: Path, lines: list[dict[str, Any]]) -> None:
    """Append lines in one write, so that lines of two processes do not interleave."""
    with file.open("ab", buffering=0) as output:
        output.write(b"".join(to_json(line) + b"\n" for line in lines))


def _chunks(lines: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    return (lines[start : start + _HEADS_A_POST] for start in range(0, len(lines), _HEADS_A_POST))


class Sweeper(Protocol):
    """Sends the retries that are due."""

    async def sweep(self, tenant: str, stop: asyncio.Event) -> int:
        """Send what is due until the event is set; return how many messages were sent."""


class SweepActivities:
    """The sweep as Temporal runs it: one long activity after another, on any live process."""

    def __init__(self, sweeper: Sweeper) -> None:
        self._sweeper = sweeper

    @activity.defn(name=Activity.SWEEP_RETRIES)
    async def sweep_retries(self, given: SweepInput) -> int:
        """Sweep for one shift, or until this process is told to stop; return how many messages were sent."""
        stop = asyncio.Event()
        log.info("sweep.started", tenant_id=given.tenant)
        async with heartbeats(), _ending(stop, given.shift.total_seconds()):
            sent = await _finishing(asyncio.create_task(self._sweeper.sweep(given.tenant, stop)), stop)
        log.info("sweep.ended", tenant_id=given.tenant, count=sent)
        return sent


async def _finishing(sweep: asyncio.Task[int], stop: asyncio.Event) -> int:
    """Wait for the sweep. If canceled, finish the current batch: an interrupted one would be sent twice."""
    try:
        return await asyncio.shield(sweep)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait({sweep}, timeout=GRACE)
        sweep.cancel()
        await asyncio.gather(sweep, return_exceptions=True)
        raise


@contextlib.asynccontextmanager
async def heartbeats() -> AsyncIterator[None]:
    """Heartbeat while the block runs."""

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(HEARTBEAT_INTERVAL)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()


@contextlib.asynccontextmanager
async def _ending(stop: asyncio.Event, after: float) -> AsyncIterator[None]:
    """Set the event when the shift ends or the worker shuts down."""

    async def end() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(after):
                await activity.wait_for_worker_shutdown()
        stop.set()

    task = asyncio.create_task(end())
    try:
        yield
    finally:
        task.cancel()
