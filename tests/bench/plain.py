"""The steps as a workflow that uses nothing but Temporal: typed, with a retry policy and a timeout."""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from tests.bench.models import Order, Receipt
    from tests.bench.plain_steps import STEPS

RETRY = RetryPolicy(initial_interval=timedelta(seconds=2), maximum_interval=timedelta(minutes=2), maximum_attempts=4)


@workflow.defn
class PlainRun:
    """Run the first steps, one after another."""

    @workflow.run
    async def run(self, order: Order, steps: int) -> list[Receipt]:
        return [
            await workflow.execute_activity(
                step, order, start_to_close_timeout=timedelta(seconds=60), retry_policy=RETRY
            )
            for step in STEPS[:steps]
        ]
