"""What a worker found when it asked its services how they do. Pure."""

from typing import Literal

from pydantic import Field

from redrive.contracts import Message
from redrive.field_types import Moment

Availability = Literal["available", "degraded", "unavailable"]


class ServiceState(Message):
    """The state of a service. `misconfigured`: it answered, and its address, token or health path is wrong."""

    name: str
    status: Availability | Literal["misconfigured"]
    reason: str
    latency_ms: float | None = None
    http_status: int | None = None


class ServiceStates(Message):
    """The states of all services that have a health path, and when a worker asked."""

    services: list[ServiceState] = Field(default_factory=list)
    probed_at: Moment
