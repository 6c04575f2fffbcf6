"""Fairness between tenants: one tenant's steps must not block another's.

Temporal keeps the tenants' weights with a task queue: a weight of 2 gets two turns where others get one.
"""

from collections.abc import Mapping
from typing import Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, UpdateTaskQueueConfigRequest
from temporalio.client import Client
from temporalio.common import Priority

# The type of the error with which a worker sends a step to the overflow queue.
CROWDED_OUT: Final = "crowded_out"
_OVERFLOW: Final = ".overflow"
_KINDS: Final = (TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY)


def turn_of(tenant: str) -> Priority:
    """Return the priority with which Temporal alternates between tenants' waiting tasks."""
    return Priority(fairness_key=tenant)


def ahead_of_others(tenant: str) -> Priority:
    """Return the priority of a workflow that others wait for. It has one task at a time, however much it is sent."""
    return Priority(priority_key=1, fairness_key=tenant)


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


async def keep_weights(client: Client, task_queue: str, weights: Mapping[str, float]) -> None:
    """Give the queues of a worker exactly these weights. Any number of workers may call this."""
    for queue in (task_queue, overflow_queue(task_queue)):
        for kind in _KINDS:
            known = await _known(client, queue, kind)
            if known != weights:
                await _put(client, queue, kind, weights, [tenant for tenant in known if tenant not in weights])


async def _known(client: Client, queue: str, kind: TaskQueueType.ValueType) -> dict[str, float]:
    answer = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind, report_config=True
        )
    )
    return dict(answer.config.fairness_weight_overrides)


async def _put(
    client: Client, queue: str, kind: TaskQueueType.ValueType, weights: Mapping[str, float], gone: list[str]
) -> None:
    await client.workflow_service.update_task_queue_config(
        UpdateTaskQueueConfigRequest(
            namespace=client.namespace,
            identity=client.identity,
            task_queue=queue,
            task_queue_type=kind,
            set_fairness_weight_overrides=weights,
            unset_fairness_weight_overrides=gone,
        )
    )
