"""A project's worker as a process that tests kill. Its arguments: Temporal's address, its queue, Redrive's queue.

With more, such as `/tmp/killed:before:redrive.report`, it kills itself with -9 once, before or after the work of that
activity, if the workflow's id is the name of that file, which it leaves behind.
"""

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor


@activity.defn
def touch(path: str) -> str:
    """Add a line to a file, unless there is another file that forbids it."""
    if Path(f"{path}.broken").exists():
        raise RuntimeError("broken")
    with Path(path).open("a") as file:
        file.write("touched\n")
    return "touched"


@workflow.defn
class TouchWorkflow:
    """Touch a file once."""

    @workflow.run
    async def run(self, path: str) -> str:
        return await workflow.execute_activity(
            touch,
            path,
            start_to_close_timeout=timedelta(seconds=2),
            retry_policy=RetryPolicy(maximum_attempts=1),
        )


class Suicide(Interceptor):
    """Kill the process at a moment, once."""

    def __init__(self, told: str) -> None:
        self.mark, self.moment, self.name = told.split(":")

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002
        """Return the interceptor of one activity task."""
        return _Dying(super().intercept_activity(next), self)

    def die(self, moment: str) -> None:
        """Die if it is this moment, and the first time."""
        if moment == self.moment and not Path(self.mark).exists():
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)


class _Dying(ActivityInboundInterceptor):
    def __init__(self, following: ActivityInboundInterceptor, suicide: Suicide) -> None:
        super().__init__(following)
        self._suicide = suicide

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - Temporal's name
        info = activity.info()
        if (info.activity_type, info.workflow_id) != (self._suicide.name, Path(self._suicide.mark).name):
            return await self.next.execute_activity(input)
        self._suicide.die("before")
        result = await self.next.execute_activity(input)
        self._suicide.die("after")
        return result


async def serve(address: str, queue: str, letters: str, *moments: str) -> None:
    """Run the worker."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    from temporalio.client import Client  # noqa: PLC0415
    from temporalio.worker import Worker  # noqa: PLC0415

    from redrive.plugin import DeadLetters  # noqa: PLC0415

    client = await Client.connect(address, plugins=[DeadLetters(["*"], task_queue=letters)])
    await Worker(
        client,
        task_queue=queue,
        workflows=[TouchWorkflow],
        activities=[touch],
        build_id="tests",
        activity_executor=ThreadPoolExecutor(4),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
        interceptors=[Suicide(moment) for moment in moments],
    ).run()


def main() -> None:
    """Run it as a program."""
    asyncio.run(serve(*sys.argv[1:]))
