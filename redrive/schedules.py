"""What Temporal does by itself at set times."""

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

SWEEP_INTERVAL: Final = timedelta(hours=1)


async def keep_sweep_schedule(client: Client, task_queue: str) -> None:
    """Have the keys looked after now and then. Any number of workers may ask for it: there is one schedule a queue."""
    name = f"redrive-expire-keys-{task_queue}"
    schedule = Schedule(
        action=ScheduleActionStartWorkflow(Workflow.EXPIRE_KEYS, id=name, task_queue=task_queue),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=SWEEP_INTERVAL)]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP),
    )
    try:
        await client.create_schedule(name, schedule)
    except ScheduleAlreadyRunningError:
        # An operator may have changed or paused it: it stays as it is.
        return
