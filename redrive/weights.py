"""The tenants' weights, as Temporal keeps them with a task queue: a weight of 2 gets two turns where others get one."""

from collections.abc import Mapping
from typing import Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, UpdateTaskQueueConfigRequest
from temporalio.client import Client

from redrive.fairness import overflow_queue

_KINDS: Final = (TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY)


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
