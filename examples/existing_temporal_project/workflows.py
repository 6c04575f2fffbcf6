"""The project's workflow: parallel activities, then one after the other. It knows nothing of Redrive."""

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from .activities import Order, charge, reserve, ship

TIMEOUT = timedelta(seconds=10)
THREE_TIMES = RetryPolicy(initial_interval=timedelta(milliseconds=200), maximum_attempts=3)


@workflow.defn
class OrderWorkflow:
    """Reserve the items, charge the card, ship."""

    @workflow.run
    async def run(self, order: Order) -> str:
        """Return what was done."""
        reserved = await asyncio.gather(
            *(workflow.execute_activity(reserve, item, start_to_close_timeout=TIMEOUT) for item in order.items)
        )
        charged = await workflow.execute_activity(
            charge, order, start_to_close_timeout=TIMEOUT, retry_policy=THREE_TIMES
        )
        shipped = await workflow.execute_activity(ship, order.id, start_to_close_timeout=TIMEOUT)
        return "; ".join([*reserved, charged, shipped])
