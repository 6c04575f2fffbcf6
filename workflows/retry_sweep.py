"""The sweep of the retry scheduler: always running somewhere, on another process if one dies.

It decides only who sweeps next. The work is one long activity after another; the number of messages does not affect the
history.
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy

with workflow.unsafe.imports_passed_through():
    from redrive.contracts import Activity, SweepInput, Workflow
    from redrive.workflows.inputs import NOTHING, read_input

# A process that dies is noticed after this.
HEARTBEAT_TIMEOUT = timedelta(seconds=5)
# The time that an activity may take beyond its shift, to finish the current batch.
MARGIN = timedelta(minutes=2)
# Unlimited: the broker or the database is down, and will be back.
RETRIES = RetryPolicy(
    initial_interval=timedelta(milliseconds=200), backoff_coefficient=2, maximum_interval=timedelta(seconds=2)
)


@workflow.defn(name=Workflow.RETRY_SWEEP)
class RetrySweep:
    """Sweep until canceled."""

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> None:
        given = read_input(SweepInput, raw)
        while not workflow.info().is_continue_as_new_suggested():
            await workflow.execute_activity(
                Activity.SWEEP_RETRIES,
                given,
                result_type=int,
                start_to_close_timeout=given.shift + MARGIN,
                heartbeat_timeout=HEARTBEAT_TIMEOUT,
                retry_policy=RETRIES,
            )
        workflow.continue_as_new(given)
