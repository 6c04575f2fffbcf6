"""Follow-ups of alerts: suppressed failures are reported later."""

import contextlib
from datetime import UTC, datetime, timedelta

from temporalio import activity
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from redrive.contracts import Activity, Workflow
from redrive.dead_letters import Alert, FollowUp
from redrive.postgres.database import Database
from redrive.store import alerts


class FollowUps:
    """Plan follow-ups, and count the failures that they report."""

    def __init__(self, client: Client, database: Database, *, task_queue: str, window: timedelta) -> None:
        self._client = client
        self._database = database
        self._task_queue = task_queue
        self.window = window

    async def plan(self, alert: Alert) -> None:
        """Start the follow-up of the alert that suppresses this one, for the end of its window. Twice is harmless."""
        since = await alerts.last_sent(await self._database.pool(), alert.letter.tenant, alert.fingerprint)
        if since is None:
            return
        follow_up = FollowUp(alert=alert, since=since)
        with contextlib.suppress(WorkflowAlreadyStartedError):
            await self._client.start_workflow(
                Workflow.ALERT_FOLLOW_UP,
                follow_up,
                id=follow_up.workflow_id,
                task_queue=self._task_queue,
                start_delay=max(since + self.window - datetime.now(UTC), timedelta(0)),
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                static_summary=f"{alert.letter.step}: {alert.category}, tenant {alert.letter.tenant}",
            )

    @activity.defn(name=Activity.TAKE_SUPPRESSED)
    async def take_suppressed(self, follow_up: FollowUp) -> int:
        """Return how many suppressed failures are reported now."""
        alert = follow_up.alert
        pool = await self._database.pool()
        return await alerts.take_suppressed(pool, alert.letter.tenant, alert.fingerprint, follow_up.since)
