"""Alerts on dead letters: Sentry and a signed webhook. Each is optional, and neither can delay a dead letter."""

from typing import Any

import httpx
from temporalio import activity

from redrive.activities.webhooks import post_signed
from redrive.contracts import Activity
from redrive.dead_letters import Alert
from redrive.errors import InvalidInput
from redrive.logs import get_logger
from redrive.settings import AlertSettings

log = get_logger(__name__)


class AlertActivities:
    """Send alerts."""

    def __init__(self, http: httpx.AsyncClient, settings: AlertSettings) -> None:
        self._http = http
        self._settings = settings
        self._sentry = _sentry(settings)

    @activity.defn(name=Activity.RAISE_ALERT)
    async def raise_alert(self, alert: Alert) -> None:
        """Send one alert to every channel that is configured."""
        log.error(
            "alert.raised",
            dlq_id=alert.letter.workflow_id,
            tenant_id=alert.letter.tenant,
            step=alert.letter.step,
            fingerprint=alert.fingerprint,
            count=alert.count,
        )
        if self._sentry:
            self._to_sentry(alert)
        if self._settings.webhook_url:
            await self._to_webhook(self._settings.webhook_url, alert)

    def _to_sentry(self, alert: Alert) -> None:
        with self._sentry.new_scope() as scope:
            scope.fingerprint = [alert.letter.tenant, alert.fingerprint]
            scope.set_context("dead letter", alert.model_dump(mode="json"))
            self._sentry.capture_message(f"{alert.letter.step}: {alert.category}: {alert.message}", level="error")
            self._sentry.flush(timeout=5)

    async def _to_webhook(self, url: str, alert: Alert) -> None:
        body = alert.model_dump_json().encode()
        await post_signed(self._http, url, body, self._settings.webhook_secret, what="alert")


def _sentry(settings: AlertSettings) -> Any:
    """Return the configured Sentry SDK if a DSN is set."""
    if settings.sentry_dsn is None:
        return None
    try:
        import sentry_sdk  # noqa: PLC0415  # optional: only those who use it install it
    except ImportError as error:
        raise InvalidInput(
            "REDRIVE_ALERTS: a Sentry DSN is set; install it with `pip install redrive[sentry]`"
        ) from error
    sentry_sdk.init(dsn=settings.sentry_dsn.get_secret_value(), default_integrations=False, send_default_pii=False)
    return sentry_sdk
