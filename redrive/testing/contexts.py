"""A module's context in a test, and the clock by which its deadline is set."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from redrive.contracts import DEFAULT_TENANT
from redrive.keys import step_key
from redrive.logs import get_logger
from redrive.modules import MemoryCounters, Module, ModuleContext, RunCounters
from redrive.resources import Resource
from redrive.testing.services import FakeServices


@dataclass
class Clock:
    """A clock that only moves when it is told to, and by the delays between a run's attempts."""

    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    def advance(self, by: timedelta) -> None:
        """Move the clock."""
        self.now += by


def new_context(
    module: Module[Any, Any],
    services: FakeServices | None = None,
    *,
    attempt: int = 1,
    clock: Clock | None = None,
    time_left: timedelta | None = None,
    run_id: str = "test-run",
    pipeline: str = "test",
    tenant: str = DEFAULT_TENANT,
    user_id: str | None = None,
    correlation_id: str | None = None,
    version: int = 0,
    labels: Mapping[str, str] | None = None,
    counters: RunCounters | None = None,
    resources: Mapping[Resource[Any], Any] | None = None,
) -> ModuleContext:
    """Return the context of one attempt of a module, to call it with: `await charge(new_context(charge), Order(…))`.

    Without `services` every call fails the test. `resources` are values in place of those that a worker would start.
    """

    def key_for(operation: str) -> str:
        return step_key(run_id, module.name, operation, version)

    correlation = correlation_id or run_id
    services = services or FakeServices()
    return ModuleContext(
        run_id=run_id,
        step=module.name,
        pipeline=pipeline,
        tenant=tenant,
        attempt=attempt,
        max_attempts=module.policy.max_attempts,
        correlation_id=correlation,
        user_id=user_id,
        deadline=(clock or Clock()).now + (time_left or module.policy.timeout),
        log=get_logger(f"module.{module.name}"),
        http=services.client(key_for=key_for, user_id=user_id, request_id=correlation),
        heartbeat=lambda: None,
        version=version,
        labels=labels or {},
        counters=counters or MemoryCounters(),
        resources=resources or {},
    )
