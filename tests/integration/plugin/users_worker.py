"""A project's worker as a process that tests kill. Its arguments: Temporal's address, its queue, Redrive's queue."""

import asyncio
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


async def main(address: str, queue: str, letters: str) -> None:
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
    ).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
