"""Deletes old closed records, on a schedule."""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy

with workflow.unsafe.imports_passed_through():
    from redrive.contracts import Activity, PurgeReport, Workflow
    from redrive.workflows.inputs import NOTHING, read_no_input

# The next purge continues where this one has to stop.
PURGE_TIMEOUT = timedelta(hours=2)
# Verifying a long audit log, before it is cut, sends no heartbeat.
HEARTBEAT_TIMEOUT = timedelta(minutes=10)
RETRIES = RetryPolicy(initial_interval=timedelta(seconds=10), maximum_interval=timedelta(minutes=5), maximum_attempts=5)


@workflow.defn(name=Workflow.PURGE_RECORDS)
class PurgeRecords:
    """Purge the records of all tenants once."""

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> PurgeReport:
        read_no_input(raw)
        report: PurgeReport = await workflow.execute_activity(
            Activity.PURGE,
            result_type=PurgeReport,
            start_to_close_timeout=PURGE_TIMEOUT,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=RETRIES,
        )
        return report
