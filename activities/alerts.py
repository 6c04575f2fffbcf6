"""Tell people that steps die: Sentry and a signed webhook. Each is optional; neither can hold up a dead letter."""

import hashlib
import hmac
import time
from typing import Any

import httpx
from temporalio import activity

from redrive.classify import category_of_status
from redrive.contracts import Activity
from redrive.dead_letters import Alert
from redrive.errors import InvalidInput, ServiceError
from redrive.logs import get_logger
from redrive.network import PRIVATE
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
        # The address is the operator's own, whole, and nothing of a payload is in it: it may be a private one.
        response = await self._http.post(
            url, content=body, headers=self._headers(body), follow_redirects=False, extensions={PRIVATE: True}
        )
        if response.status_code >= 300:
            raise ServiceError(
                f"the alert webhook answered {response.status_code}",
                category=category_of_status(response.status_code),
                status=response.status_code,
            )

    def _headers(self, body: bytes) -> dict[str, str]:
        moment = str(int(time.time()))
        headers = {"content-type": "application/json", "x-redrive-timestamp": moment}
        if self._settings.webhook_secret:
            secret = self._settings.webhook_secret.get_secret_value().encode()
            signature = hmac.new(secret, moment.encode() + b"." + body, hashlib.sha256).hexdigest()
            headers["x-redrive-signature"] = f"sha256={signature}"
        return headers


def _sentry(settings: AlertSettings) -> Any:
    """Return the Sentry SDK, set up, when a DSN is set."""
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
