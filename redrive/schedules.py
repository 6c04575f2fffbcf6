"""The schedules: what Temporal runs at set times."""

from datetime import timedelta
from typing import Final

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
)

from redrive.contracts import Workflow

SWEEP_INTERVAL: Final = timedelta(minutes=1)
ANCHOR_INTERVAL: Final = timedelta(hours=1)
PURGE_INTERVAL: Final = timedelta(days=1)


async def keep_schedules(client: Client, task_queue: str) -> None:
    """Create the maintenance schedules. Any number of workers may call this: each queue has one of each."""
    await keep_sweep_schedule(client, task_queue)
    await _keep(client, task_queue, "redrive-anchor-audit", Workflow.ANCHOR_AUDIT, ANCHOR_INTERVAL)
    await _keep(client, task_queue, "redrive-purge", Workflow.PURGE_RECORDS, PURGE_INTERVAL)


async def keep_sweep_schedule(client: Client, task_queue: str) -> None:
    """Create the schedule of the sweep over runs and keys."""
    await _keep(client, task_queue, "redrive-expire-keys", Workflow.EXPIRE_KEYS, SWEEP_INTERVAL)


async def _keep(client: Client, task_queue: str, what: str, workflow: Workflow, every: timedelta) -> None:
    name = f"{what}-{task_queue}"
    schedule = Schedule(
        action=ScheduleActionStartWorkflow(workflow, id=name, task_queue=task_queue),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=every)]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP),
    )
    try:
        await client.create_schedule(name, schedule)
    except ScheduleAlreadyRunningError:
        # An operator may have changed or paused it: it stays as it is.
        return
