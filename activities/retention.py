"""The purge: delete closed records when they are older than the settings allow."""

from collections import Counter

from temporalio import activity

from redrive.contracts import Activity, PurgeReport
from redrive.logs import get_logger
from redrive.postgres.database import Database
from redrive.retention import RetentionSettings
from redrive.store.audit.log import SYSTEM
from redrive.store.retention import AuditNotWhole, Purge, purge_tenant, tenants

log = get_logger(__name__)


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
