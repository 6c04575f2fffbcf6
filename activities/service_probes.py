"""Ask the configured services how they do, for operators who look at them."""

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import httpx
from temporalio import activity

from redrive.connectors.probes import probe
from redrive.contracts import ERROR_TEXT_LIMIT, Activity
from redrive.errors import Terminal
from redrive.http import ServiceClient
from redrive.redaction.redactor import Redactor
from redrive.service_states import ServiceState, ServiceStates
from redrive.settings import ServiceSettings

# However many operators look, a service is asked this often by each worker, in seconds.
LASTS: Final = 5.0


class ServiceProbes:
    """Probe all services that have a health path, at once."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        services: Mapping[str, ServiceSettings],
        redactor: Redactor,
        *,
        private_addresses: bool,
    ) -> None:
        self._calls = ServiceClient(http, services=services, private_addresses=private_addresses)
        self._paths = {name: service.health for name, service in services.items() if service.health}
        self._redactor = redactor
        self._probing = asyncio.Lock()
        self._known: tuple[float, ServiceStates] | None = None

    @activity.defn(name=Activity.PROBE_SERVICES)
    async def probe_services(self) -> ServiceStates:
        """Return the state of each service."""
        async with self._probing:
            if self._known is None or time.monotonic() - self._known[0] > LASTS:
                found = await asyncio.gather(*(self._state(name, path) for name, path in sorted(self._paths.items())))
                states = ServiceStates(services=list(found), probed_at=datetime.now(UTC))
                self._known = (time.monotonic(), states)
            return self._known[1]

    async def _state(self, name: str, path: str) -> ServiceState:
        try:
            found = await probe(self._calls.service(name), path=path)
        except Terminal as error:
            return ServiceState(name=name, status="misconfigured", reason=self._told(str(error)))
        known = found.model_dump(exclude={"reason"})
        return ServiceState(name=name, reason=self._told(found.reason), **known)

    def _told(self, reason: str) -> str:
        return self._redactor.beginning(reason, ERROR_TEXT_LIMIT)
