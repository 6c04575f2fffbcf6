"""Start an order, or wait for one: `python -m existing_temporal_project.order start order-1`."""

import asyncio
import sys
import time

from temporalio.client import Client

from .activities import Order
from .worker import ADDRESS, QUEUE
from .workflows import OrderWorkflow


async def main(what: str, order_id: str) -> None:
    """Do what was asked."""
    client = await Client.connect(ADDRESS)
    if what == "start":
        order = Order(order_id, 4200, ["tea", "cup"])
        await client.start_workflow(OrderWorkflow.run, order, id=order_id, task_queue=QUEUE)
        print(f"{order_id} is started")
    else:
        print(await client.get_workflow_handle(order_id).result())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
    # Temporal's threads can crash Python when it ends at once: https://github.com/temporalio/sdk-python/issues/300
    time.sleep(0.5)
