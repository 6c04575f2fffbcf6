"""A project's worker as a process that tests kill. Its arguments: Temporal's address, its queue, Redrive's queue.

A fourth one is a folder of files, each with a workflow's id as its name, that say where the worker kills itself:
`redrive.report before`.
"""

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from temporalio import activity, workflow
from temporalio.common import RetryPolicy


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


def die_if_told(folder: Path, moment: str) -> None:
    """Die with -9, once, if a file says so for the workflow of the activity that runs now."""
    told = folder / (activity.info().workflow_id or "")
    if told.is_file() and told.read_text() == f"{activity.info().activity_type} {moment}":
        told.rename(told.with_suffix(".died"))
        os.kill(os.getpid(), signal.SIGKILL)


async def main(address: str, queue: str, letters: str, deaths: str = "") -> None:
    """Run the worker."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    from temporalio.client import Client  # noqa: PLC0415
    from temporalio.worker import (  # noqa: PLC0415
        ActivityInboundInterceptor,
        ExecuteActivityInput,
        Interceptor,
        Worker,
    )

    from redrive.plugin import DeadLetters  # noqa: PLC0415

    class Dying(ActivityInboundInterceptor):
        async def execute_activity(self, input: ExecuteActivityInput) -> object:  # noqa: A002 - Temporal's name
            die_if_told(Path(deaths), "before")
            result: object = await self.next.execute_activity(input)
            die_if_told(Path(deaths), "after")
            return result

    class Deaths(Interceptor):
        def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002
            return Dying(super().intercept_activity(next))

    client = await Client.connect(address, plugins=[DeadLetters(["*"], task_queue=letters)])
    await Worker(
        client,
        task_queue=queue,
        workflows=[TouchWorkflow],
        activities=[touch],
        activity_executor=ThreadPoolExecutor(4),
        interceptors=[Deaths()] if deaths else [],
        # Temporal's default is a hash over all loaded code, which takes seconds.
        build_id="users",
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
    ).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
