"""Whether a service can be used now. That it cannot is a result; that it is set up wrongly is an error."""

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from pydantic import BaseModel

from redrive.categories import TRANSIENT_CATEGORIES, Category
from redrive.errors import ServiceError, Terminal
from redrive.http import ServiceClient, ServiceResponse
from redrive.service_states import Availability

TIMEOUT: Final = timedelta(seconds=5)
SLOW: Final = timedelta(seconds=2)
# The words of health endpoints: RFC draft health+json, Spring, Kubernetes and others.
_DEGRADED: Final = frozenset({"warn", "warning", "degraded"})
_DOWN: Final = frozenset({"fail", "failed", "down", "error", "unhealthy", "out_of_service", "false"})


class Probe(BaseModel):
    """A service's state, why it is so, and how long it took to answer."""

    status: Availability
    reason: str
    latency_ms: float
    http_status: int | None = None


async def probe(
    service: ServiceClient,
    *,
    path: str = "/",
    headers: Mapping[str, str] | None = None,
    timeout: timedelta = TIMEOUT,
    slow: timedelta = SLOW,
) -> Probe:
    """Ask a service once for its health: `await probe(ctx.http.service("gitea"), path="/api/healthz")`.

    Unavailable: no answer in time, a 5xx, or a body that says so. Degraded: slower than `slow`, rate limited, or a body
    that says so. A path that is not there, a refused token and an address that is not allowed are raised.
    """
    began = time.monotonic()
    try:
        answer = await service.get(path, operation="probe", headers=headers, timeout=timeout)
    except ServiceError as error:
        return _failed(error, _since(began))
    latency = _since(began)
    status, reason = _told(answer)
    if status == "available" and latency > slow / timedelta(milliseconds=1):
        status, reason = "degraded", f"it answered after {latency:g} ms; {slow.total_seconds():g} s is slow"
    return Probe(status=status, reason=reason, latency_ms=latency, http_status=answer.status)


def _failed(error: ServiceError, latency: float) -> Probe:
    if error.category not in TRANSIENT_CATEGORIES:
        raise Terminal(
            f"{error}: look at the service's base_url, token and health path in REDRIVE_SERVICES",
            category=Category.MISSING_CONFIG,
        ) from error
    status: Availability = "degraded" if error.category is Category.RATE_LIMIT else "unavailable"
    return Probe(status=status, reason=str(error), latency_ms=latency, http_status=error.status)


def _told(answer: ServiceResponse) -> tuple[Availability, str]:
    """Read what a health endpoint says in its body, if it says anything."""
    try:
        body = answer.json()
    except ServiceError:
        body = None
    told = _word(body) if isinstance(body, dict) else ""
    if told in _DOWN:
        return "unavailable", f"it says {told!r} of itself"
    if told in _DEGRADED:
        return "degraded", f"it says {told!r} of itself"
    return "available", f"it answered {answer.status}"


def _word(body: dict[str, Any]) -> str:
    return str(body.get("status", body.get("healthy", "")))[:50].lower()


def _since(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 1)
