"""Alerts on dead letters: Sentry and a signed webhook. Each is optional, and neither can delay a dead letter.

Suppressed failures are reported later, in a follow-up. Webhooks are signed, so that receivers can verify the sender.
"""

import asyncio
import contextlib
import hashlib
import hmac
import time
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import httpx
from pydantic import SecretStr
from temporalio import activity
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from redrive.classify import category_of_status
from redrive.contracts import Activity, Workflow
from redrive.dead_letters import Alert, AlertInput
from redrive.errors import InvalidInput, ServiceError
from redrive.keys import short_hash
from redrive.logs import get_logger
from redrive.network import PRIVATE
from redrive.postgres.database import Database
from redrive.settings import AlertSettings
from redrive.store import alerts

if TYPE_CHECKING:
    from redrive.activities.sentry import SentryEvents

log = get_logger(__name__)


class AlertActivities:
    """Send alerts."""

    def __init__(self, http: httpx.AsyncClient, settings: AlertSettings) -> None:
        self._http = http
        self._settings = settings
        self._sentry = _sentry(settings)

    @activity.defn(name=Activity.RAISE_ALERT)
    async def raise_alert(self, alert: Alert) -> None:
        """Send one alert; a retry sends it to those channels only that have not taken it."""
        info = activity.info()
        taken = {str(channel) for channel in info.heartbeat_details}
        try:
            await self.send(alert, taken, source=info.workflow_run_id or info.activity_id)
        finally:
            activity.heartbeat(*sorted(taken))

    async def send(self, alert: Alert, taken: set[str], *, source: str) -> None:
        """Send one alert to every configured channel but those that have `taken` it, and add those that do.

        No channel waits for another. Raises an error of one that did not take it. The same alert of the same source
        is one event for Sentry.
        """
        log.error(
            "alert.raised",
            dlq_id=alert.letter.workflow_id,
            tenant_id=alert.letter.tenant,
            step=alert.letter.step,
            fingerprint=alert.fingerprint,
            count=alert.count,
        )
        channels: dict[str, Awaitable[None]] = {}
        if self._sentry and "sentry" not in taken:
            channels["sentry"] = self._sentry.send(alert, source)
        if self._settings.webhook_url and "webhook" not in taken:
            channels["webhook"] = self._to_webhook(self._settings.webhook_url, alert)
        outcomes = await asyncio.gather(*channels.values(), return_exceptions=True)
        failed = {name: error for name, error in zip(channels, outcomes, strict=True) if error is not None}
        taken |= channels.keys() - failed.keys()
        # If both failed, the retry tells of the other one.
        for error in failed.values():
            raise error

    async def _to_webhook(self, url: str, alert: Alert) -> None:
        body = alert.model_dump_json().encode()
        await post_signed(self._http, url, body, self._settings.webhook_secret, what="alert")


def _sentry(settings: AlertSettings) -> "SentryEvents | None":
    """Return the way to Sentry if a DSN is set."""
    if settings.sentry_dsn is None:
        return None
    try:
        from redrive.activities.sentry import SentryEvents  # noqa: PLC0415  # optional: only those who use it install it
    except ImportError as error:
        raise InvalidInput(
            "REDRIVE_ALERTS: a Sentry DSN is set; install it with `pip install redrive[sentry]`"
        ) from error
    return SentryEvents(settings.sentry_dsn)


class AlertWorkflows:
    """Have alerts raised, now or later, and count the failures that they report."""

    def __init__(self, client: Client, database: Database, *, task_queue: str, window: timedelta) -> None:
        self._client = client
        self._database = database
        self._task_queue = task_queue
        self.window = window

    async def raise_now(self, alert: Alert, cycle: int) -> None:
        """Have an alert on a cycle of a dead letter raised. Twice is harmless."""
        await self._start(AlertInput(alert=alert), short_hash(f"{alert.letter.workflow_id} {cycle}"))

    async def follow_up(self, alert: Alert) -> None:
        """Have the alert that suppresses this one followed up at the end of its window. Twice is harmless."""
        since = await alerts.last_sent(await self._database.pool(), alert.letter.tenant, alert.fingerprint)
        if since is None:
            return
        delay = max(since + self.window - datetime.now(UTC), timedelta(0))
        await self._start(AlertInput(alert=alert, since=since), f"{since:%Y%m%dT%H%M%S.%f}", delay)

    async def _start(self, given: AlertInput, name: str, delay: timedelta | None = None) -> None:
        alert = given.alert
        with contextlib.suppress(WorkflowAlreadyStartedError):
            await self._client.start_workflow(
                Workflow.RAISE_ALERT,
                given,
                id=f"alert-{alert.letter.tenant}-{alert.fingerprint}-{name}",
                task_queue=self._task_queue,
                start_delay=delay,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                static_summary=f"{alert.letter.step}: {alert.category}, tenant {alert.letter.tenant}",
            )

    @activity.defn(name=Activity.TAKE_SUPPRESSED)
    async def take_suppressed(self, given: AlertInput) -> int:
        """Return how many suppressed failures are reported now."""
        letter, pool = given.alert.letter, await self._database.pool()
        if given.since is None:
            return 0
        return await alerts.take_suppressed(pool, letter.tenant, given.alert.fingerprint, given.since)


async def post_signed(http: httpx.AsyncClient, url: str, body: bytes, secret: SecretStr | None, *, what: str) -> None:
    """Send a JSON document, or raise a ServiceError that names what was not accepted."""
    # The operator sets the whole address, and no payload data is in it: it may be a private one.
    response = await http.post(
        url, content=body, headers=_headers(body, secret), follow_redirects=False, extensions={PRIVATE: True}
    )
    if response.status_code >= 300:
        raise ServiceError(
            f"the {what} webhook answered {response.status_code}",
            category=category_of_status(response.status_code),
            status=response.status_code,
        )


def _headers(body: bytes, secret: SecretStr | None) -> dict[str, str]:
    moment = str(int(time.time()))
    headers = {"content-type": "application/json", "x-redrive-timestamp": moment}
    if secret:
        key = secret.get_secret_value().encode()
        signature = hmac.new(key, moment.encode() + b"." + body, hashlib.sha256).hexdigest()
        headers["x-redrive-signature"] = f"sha256={signature}"
    return headers
