"""The sweep over runs and keys: settle those whose end was never recorded, delete expired keys.

It also deletes retries that nobody will end.
"""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio import activity
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.service import RPCError, RPCStatusCode

from redrive.activities.retry_sweep import heartbeats
from redrive.contracts import Activity, KeySweep, RunStatus
from redrive.home import check_home
from redrive.idempotency.claims import ClaimRequest, Settlement, without_secrets
from redrive.idempotency.postgres_claims import settle_key
from redrive.idempotency.starts import outcome_of
from redrive.logs import get_logger
from redrive.postgres.database import Database
from redrive.postgres.tenancy import Pool
from redrive.reconcile import Reconciliation
from redrive.redaction.redactor import Redactor
from redrive.store.keys.rows import KeyRow, delete_expired, list_unheard, touch_keys
from redrive.store.runs.retrying import delete_unheard
from redrive.store.runs.rows import close_run, list_unheard_runs, touch_runs
from redrive.visibility import execution_status

BATCH: Final = 1000
CHECKED_AT_ONCE: Final = 200
# The maximum number of runs that one sweep asks for; the next sweep takes the others.
MOST_CHECKED: Final = 5000
QUIET: Final = timedelta(minutes=1)

log = get_logger(__name__)


class KeyActivities:
    """Maintain keys."""

    def __init__(self, client: Client, database: Database, redactor: Redactor, quiet: timedelta = QUIET) -> None:
        self._client = client
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
