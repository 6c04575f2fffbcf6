"""Alerts as events of Sentry. Its SDK builds an event; sending it is ours, so that a failure is noticed and retried."""

import uuid
from datetime import timedelta
from typing import Final

import httpx
from pydantic import SecretStr
from sentry_sdk import Client
from sentry_sdk.consts import VERSION
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport
from sentry_sdk.utils import BadDsn, Dsn

from redrive.classify import category_of_status
from redrive.dead_letters import Alert
from redrive.errors import InvalidInput, ServiceError

_TIMEOUT: Final = timedelta(seconds=10)
_NAMESPACE: Final = uuid.UUID("3f9c1f0e-6c0f-4f5e-9a54-6d5cf0a1d2b7")


class SentryEvents:
    """Events of one Sentry project. The SDK's global state is left to modules that use Sentry themselves."""

    def __init__(self, dsn: SecretStr) -> None:
        try:
            auth = Dsn(dsn.get_secret_value()).to_auth(f"sentry.python/{VERSION}")
        except BadDsn as error:
            raise InvalidInput(f"REDRIVE_ALERTS: sentry_dsn: {error}") from None
        self._url = auth.get_api_url()
        self._headers = {"content-type": "application/x-sentry-envelope", "x-sentry-auth": auth.to_header()}
        self._built = _Built()
        self._client = Client(
            dsn=dsn.get_secret_value(),
            transport=self._built,
            default_integrations=False,
            auto_session_tracking=False,
            enable_backpressure_handling=False,
        )

    async def send(self, alert: Alert, source: str) -> None:
        """Send an alert, or raise why Sentry did not take it. It drops what it has by the id already."""
        self._client.capture_event(
            {
                "event_id": uuid.uuid5(_NAMESPACE, f"{source} {alert.model_dump_json()}").hex,
                "message": f"{alert.letter.step}: {alert.category}: {alert.message}",
                "level": "error",
                "fingerprint": [alert.letter.tenant, alert.fingerprint],
                "contexts": {"dead letter": alert.model_dump(mode="json")},
            }
        )
        for envelope in self._built.take():
            await self._post(envelope)

    async def _post(self, envelope: Envelope) -> None:
        # A client of its own: it obeys the proxies of the environment, as the SDK does.
        async with httpx.AsyncClient(timeout=_TIMEOUT.total_seconds()) as http:
            response = await http.post(self._url, content=envelope.serialize(), headers=self._headers)
        if response.status_code >= 300:
            raise ServiceError(
                f"Sentry answered {response.status_code}",
                category=category_of_status(response.status_code),
                status=response.status_code,
            )


class _Built(Transport):
    """Keeps the events that the SDK has built."""

    def __init__(self) -> None:
        super().__init__()
        self._envelopes: list[Envelope] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self._envelopes.append(envelope)

    def take(self) -> list[Envelope]:
        """Return them, once."""
        taken, self._envelopes = self._envelopes, []
        return taken
