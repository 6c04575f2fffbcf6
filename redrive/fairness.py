"""Fairness between tenants: one tenant's steps must not block another's. Pure."""

from typing import Final

from temporalio.common import Priority

# The type of the error with which a worker sends a step to the overflow queue.
CROWDED_OUT: Final = "crowded_out"
_OVERFLOW: Final = ".overflow"


def turn_of(tenant: str) -> Priority:
    """Return the priority with which Temporal alternates between tenants' waiting tasks."""
    return Priority(fairness_key=tenant)


def overflow_queue(task_queue: str) -> str:
    """Return the queue for steps whose tenant already keeps a worker busy."""
    return task_queue + _OVERFLOW


def is_overflow(task_queue: str) -> bool:
    """Tell whether a queue is the overflow of another."""
    return task_queue.endswith(_OVERFLOW)


def slots_to_reserve(steps: int, wanted: int | None) -> int:
    """Return how many of a worker's slots are for tenants with hardly any running steps: by default one in five."""
    if wanted is not None:
        return min(wanted, steps - 1)
    return max(1, steps // 5) if steps > 1 else 0


def is_welcome(held: int, reserved: int) -> bool:
    """Tell whether a tenant that holds this many slots may take a reserved one: several such tenants must fit."""
    return held < max(1, reserved // 4)
