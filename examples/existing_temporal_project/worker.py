"""The project's own worker."""

import asyncio
import os

from temporalio.client import Client
from temporalio.worker import Worker

from redrive.plugin import DeadLetters

from .activities import charge, reserve, ship
from .workflows import OrderWorkflow

ADDRESS = os.environ.get("TEMPORAL_ADDRESS", "localhost:7233")
QUEUE = "orders"


async def main() -> None:
    """Run the worker until it is stopped."""
    client = await Client.connect(ADDRESS, plugins=[DeadLetters(workflows=["Order*"])])
    worker = Worker(client, task_queue=QUEUE, workflows=[OrderWorkflow], activities=[reserve, charge, ship])
    print("the worker runs", flush=True)
    await worker.run()


if __name__ == "__main__":
    asyncio.run(main())
