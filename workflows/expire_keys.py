"""Maintains idempotency keys, on a schedule."""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy

with workflow.unsafe.imports_passed_through():
    from redrive.contracts import Activity, KeySweep, Workflow
    from redrive.workflows.inputs import NOTHING, read_no_input

# The next sweep continues where this one has to stop.
SWEEP_TIMEOUT = timedelta(minutes=10)
HEARTBEAT_TIMEOUT = timedelta(minutes=1)
RETRIES = RetryPolicy(initial_interval=timedelta(seconds=10), maximum_interval=timedelta(minutes=5), maximum_attempts=5)


@workflow.defn(name=Workflow.EXPIRE_KEYS)
class ExpireKeys:
    """Settle keys whose end was never recorded, and delete expired ones."""

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> KeySweep:
        read_no_input(raw)
        sweep: KeySweep = await workflow.execute_activity(
            Activity.EXPIRE_KEYS,
            result_type=KeySweep,
            start_to_close_timeout=SWEEP_TIMEOUT,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=RETRIES,
        )
        return sweep
