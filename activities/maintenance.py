"""The work of the maintenance workflows: the sweep over keys, the purge, anchors of the audit log, the retry sweep.

The sweep over runs and keys compares the two stores, repairs what differs, alerts on what it cannot repair, deletes
expired keys, and deletes retries that nobody will end. The purge deletes closed records when they are older than the
settings allow. Heads of the audit log are recorded outside of it: in the log output and, if set, in a file and at a
webhook.
"""

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Protocol

import httpx
from pydantic_core import to_json
from temporalio import activity
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client

from redrive.activities.alerts import AlertActivities, post_signed
from redrive.activities.workflow_tasks import WorkflowTasks
from redrive.contracts import Activity, AnchorMark, ClaimRequest, KeySweep, PurgeReport, SweepInput
from redrive.dead_letters import Alert
from redrive.errors import RedriveError
from redrive.home import check_home
from redrive.logs import get_logger
from redrive.missed_ends import QUIET, MissedEnds
from redrive.postgres.database import Database
from redrive.postgres.tenancy import Pool
from redrive.reconcile import Kind, Problem, Reconciliation
from redrive.redaction.redactor import Redactor
from redrive.settings import AnchorSettings, RetentionSettings
from redrive.store.audit import SYSTEM, Head, grown_heads
from redrive.store.keys import delete_expired
from redrive.store.retention import AuditNotWhole, Purge, purge_tenant, tenants
from redrive.store.runs import delete_unheard

BATCH: Final = 1000
ALERT_INTERVAL: Final = 3600.0
_HEADS_A_POST: Final = 500
HEARTBEAT_INTERVAL: Final = 1.0
# The time for a batch that is being sent when the sweep is canceled.
GRACE: Final = 30.0

log = get_logger(__name__)


class KeyActivities:
    """Maintain keys, and keep the two stores in agreement."""

    def __init__(
        self,
        client: Client,
        database: Database,
        redactor: Redactor,
        alerts: AlertActivities,
        *,
        quiet: timedelta = QUIET,
        tasks: WorkflowTasks | None = None,
    ) -> None:
        self._client = client
        self._tasks = tasks
        self._database = database
        self._redactor = redactor
        self._alerts = alerts
        self._quiet = quiet
        self._told: dict[tuple[str, str, str], float] = {}

    @activity.defn(name=Activity.EXPIRE_KEYS)
    async def expire_keys(self) -> KeySweep:
        """Do one sweep. It may be interrupted anywhere: the next sweep continues."""
        async with heartbeats():
            pool = await self._database.pool()
            await check_home(self._client, pool)
            if self._tasks:
                await self._tasks.sweep(pool)
            repaired = await self._reconcile(pool)
            await delete_unheard(pool)
            deleted = await self._delete_expired()
        sweep = KeySweep(runs=repaired[Kind.ROW_BEHIND], settled=repaired[Kind.KEY_BEHIND], deleted=deleted)
        log.info("key.swept", runs=sweep.runs, settled=sweep.settled, deleted=sweep.deleted)
        return sweep

    @activity.defn(name=Activity.RECORD_KEY)
    async def record_key(self, request: ClaimRequest) -> None:
        """Write the row of a key that was used while the database was down."""
        pool = await self._database.pool()
        await check_home(self._client, pool)
        await MissedEnds(self._client, pool, self._redactor).record_key(request)

    async def _reconcile(self, pool: Pool) -> Counter[Kind]:
        """Repair what crashes and outages have left, and tell of what cannot be repaired; return what was."""
        ends = MissedEnds(self._client, pool, self._redactor, self._quiet)
        stores = Reconciliation(self._client, pool, ends, repair=True, unattended=True, quiet=self._quiet)
        report = await stores.run(None)
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
                await self._alert(problem)
        return Counter(problem.kind for problem in report.problems if problem.repaired)

    async def _alert(self, problem: Problem) -> None:
        """Raise an alert on what needs a person, once in an hour. The next sweep tries again to send it."""
        which, now = (problem.kind.value, problem.run_id, problem.step), time.monotonic()
        self._told = {known: told for known, told in self._told.items() if now - told < ALERT_INTERVAL}
        if which in self._told:
            return
        try:
            await self._alerts.send(_alert_on(problem), set(), source=uuid.uuid4().hex)
        except (RedriveError, httpx.HTTPError) as error:
            log.warning("alert.not_sent", error_type=type(error).__name__, error=str(error))
            return
        self._told[which] = now

    async def _delete_expired(self) -> int:
        """Delete what has expired, once Temporal has also forgotten it: then the first generation's run id is free."""
        pool, deleted = await self._database.pool(), 0
        retention = await self._retention()
        while count := await delete_expired(pool, retention, BATCH):
            deleted += count
        return deleted

    async def _retention(self) -> timedelta:
        """Return Temporal's retention for closed runs."""
        answer = await self._client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=self._client.namespace)
        )
        return answer.config.workflow_execution_retention_ttl.ToTimedelta()


def _alert_on(problem: Problem) -> Alert:
    return Alert(
        letter=problem.letter,
        pipeline="",
        fingerprint=f"stores_disagree:{problem.kind.value}",
        category="stores_disagree",
        error_type=problem.kind.value,
        message=problem.about,
        attempts=0,
        count=1,
    )


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
