"""Whose turn it is: what keeps the steps of one tenant from standing in the way of another's. Pure."""

from typing import Final

from temporalio.common import Priority

# The type of the error by which a worker sends a step on to the overflow queue.
CROWDED_OUT: Final = "crowded_out"
_OVERFLOW: Final = ".overflow"


def turn_of(tenant: str) -> Priority:
    """Return what has Temporal give out waiting tasks by turns between tenants."""
    return Priority(fairness_key=tenant)


def overflow_queue(task_queue: str) -> str:
    """Return the queue where steps wait whose tenant keeps a worker busy already."""
    return task_queue + _OVERFLOW


def is_overflow(task_queue: str) -> bool:
    """Tell whether a queue is the overflow of another."""
    return task_queue.endswith(_OVERFLOW)


def slots_to_reserve(steps: int, wanted: int | None) -> int:
    """Return how many of a worker's slots are for tenants with hardly any step running: by default one in five."""
    if wanted is not None:
        return min(wanted, steps - 1)
    return max(1, steps // 5) if steps > 1 else 0


def is_welcome(held: int, reserved: int) -> bool:
    """Tell whether a tenant that holds so many slots may take a reserved one: several such tenants have to fit in."""
    return held < max(1, reserved // 4)
