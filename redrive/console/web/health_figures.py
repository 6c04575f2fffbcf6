"""How runs and workers do now: outcomes of the last hour, how long steps take, and who polls for work.

Nothing is written for it: outcomes are rows that runs leave anyway, the times of steps are in the results of runs, and
Temporal knows the pollers.
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.worker.v1 import WorkerHeartbeat
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, ListWorkersRequest
from temporalio.client import Client, WorkflowFailureError
from temporalio.service import RPCError

from redrive.client import POLL_LENGTH
from redrive.contracts import RunResult, RunStatus, StepState
from redrive.visibility import quoted, runs_query

SPAN: Final = timedelta(hours=1)
SAMPLE: Final = 60
_TIMEOUT: Final = timedelta(seconds=5)
_KINDS: Final = (TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY)


class Pace(NamedTuple):
    """Runs that began in the last hour, of those that are parked or have ended."""

    total: int
    succeeded: int

    @property
    def share(self) -> float | None:
        """The share that succeeded, in percent; None if there were none."""
        return 100 * self.succeeded / self.total if self.total else None


def pace(outcomes: dict[RunStatus, int]) -> Pace:
    """Count outcomes. One that goes on after a replay has no outcome yet."""
    counted = {status: count for status, count in outcomes.items() if status.closed or status is RunStatus.DLQ_PENDING}
    return Pace(sum(counted.values()), counted.get(RunStatus.SUCCESS, 0))


class Latency(NamedTuple):
    """How long a module's steps took, retries included."""

    module: str
    steps: int
    median: timedelta
    slowest: timedelta


async def latencies(client: Client, tenant: str | None, now: datetime) -> list[Latency]:
    """Return how long steps took in the newest runs that have succeeded in the last hour."""
    query = runs_query(tenant=tenant, status=RunStatus.SUCCESS, pipeline=None, since=now - SPAN)
    found = [each.id async for each in client.list_workflows(query, limit=SAMPLE, rpc_timeout=_TIMEOUT)]
    results = await asyncio.gather(*(_steps(client, run_id) for run_id in found))
    return step_latencies(step for steps in results for step in steps)


async def _steps(client: Client, run_id: str) -> Sequence[StepState]:
    try:
        result: RunResult = await client.get_workflow_handle(run_id, result_type=RunResult).result(rpc_timeout=_TIMEOUT)
    except (RPCError, WorkflowFailureError):
        # Temporal may have forgotten it since it was listed.
        return []
    return result.steps


def step_latencies(steps: Iterable[StepState]) -> list[Latency]:
    """Return the median and the 99th percentile for each module, the slowest first."""
    taken: dict[str, list[timedelta]] = {}
    for step in steps:
        if step.started_at and step.finished_at:
            taken.setdefault(step.name, []).append(step.finished_at - step.started_at)
    rows = [Latency(name, len(times), percentile(times, 50), percentile(times, 99)) for name, times in taken.items()]
    return sorted(rows, key=lambda row: row.slowest, reverse=True)


def percentile(times: Sequence[timedelta], percent: int) -> timedelta:
    """Return the smallest time that is not below this share of all."""
    ordered = sorted(times)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


class Workers(NamedTuple):
    """The processes that poll for work, their builds, and their slots for steps, if the server tells."""

    processes: int
    builds: list[str]
    last_seen: datetime | None
    used: int | None
    slots: int | None


async def workers(client: Client, task_queue: str) -> Workers:
    """Return who polls a task queue. A worker that was killed is counted for up to a minute."""
    since = datetime.now(UTC) - POLL_LENGTH
    polling, beats = await asyncio.gather(
        asyncio.gather(*(_pollers(client, task_queue, kind) for kind in _KINDS)), _beats(client, task_queue)
    )
    pollers = [each for found in polling for each in found if _seen(each) > since]
    builds = {each.deployment_options.build_id or each.worker_version_capabilities.build_id for each in pollers}
    builds |= {each.deployment_version.build_id for each in beats}
    free = sum(each.activity_task_slots_info.current_available_slots for each in beats)
    used = sum(each.activity_task_slots_info.current_used_slots for each in beats)
    return Workers(
        processes=len({each.identity for each in pollers}),
        builds=sorted(builds - {""}),
        last_seen=max((_seen(each) for each in pollers), default=None),
        used=used if beats else None,
        slots=free + used if beats else None,
    )


def _seen(poller: PollerInfo) -> datetime:
    return poller.last_access_time.ToDatetime(UTC)


async def _pollers(client: Client, task_queue: str, kind: TaskQueueType.ValueType) -> list[PollerInfo]:
    request = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=task_queue), task_queue_type=kind
    )
    return list((await client.workflow_service.describe_task_queue(request, timeout=_TIMEOUT)).pollers)


async def _beats(client: Client, task_queue: str) -> list[WorkerHeartbeat]:
    """Return what workers last reported of themselves; none from a server that does not keep it."""
    request = ListWorkersRequest(namespace=client.namespace, page_size=200, query=f"TaskQueue = {quoted(task_queue)}")
    try:
        answer = await client.workflow_service.list_workers(request, timeout=_TIMEOUT)
    except RPCError:
        return []
    return [each.worker_heartbeat for each in answer.workers_info]
