"""Records the heads of the audit log outside of it, on a schedule."""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy

with workflow.unsafe.imports_passed_through():
    from redrive.contracts import Activity, AnchorMark, Workflow
    from redrive.workflows.inputs import NOTHING, read_no_input

ANCHOR_TIMEOUT = timedelta(minutes=5)
RETRIES = RetryPolicy(initial_interval=timedelta(seconds=10), maximum_interval=timedelta(minutes=5), maximum_attempts=5)


@workflow.defn(name=Workflow.ANCHOR_AUDIT)
class AnchorAudit:
    """Record the heads that have changed since the schedule's last run, whose result is that moment."""

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> AnchorMark:
        read_no_input(raw)
        last = workflow.get_last_completion_result(AnchorMark) if workflow.has_last_completion_result() else None
        mark: AnchorMark = await workflow.execute_activity(
            Activity.ANCHOR_AUDIT,
            last,
            result_type=AnchorMark,
            start_to_close_timeout=ANCHOR_TIMEOUT,
            retry_policy=RETRIES,
        )
        return mark
