"""Reports the failures that an alert suppressed. Started with the first one, delayed until the alert's window ends.

A separate workflow: it outlives the dead letters that it reports, and costs one task for thousands of them.
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy

with workflow.unsafe.imports_passed_through():
    from redrive.contracts import Activity, Workflow
    from redrive.dead_letters import FollowUp
    from redrive.workflows.inputs import NOTHING, read_input

COUNT_TIMEOUT = timedelta(seconds=5)
COUNT_RETRIES = RetryPolicy(maximum_interval=timedelta(seconds=20))
ALERT_TIMEOUT = timedelta(seconds=30)
ALERT_RETRIES = RetryPolicy(maximum_attempts=8, maximum_interval=timedelta(minutes=5))


@workflow.defn(name=Workflow.ALERT_FOLLOW_UP)
class AlertFollowUp:
    """Raise one more alert, if there are suppressed failures that nobody has reported meanwhile."""

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> int:
        given = read_input(FollowUp, raw)
        count: int = await workflow.execute_activity(
            Activity.TAKE_SUPPRESSED,
            given,
            result_type=int,
            start_to_close_timeout=COUNT_TIMEOUT,
            retry_policy=COUNT_RETRIES,
        )
        if count:
            await workflow.execute_activity(
                Activity.RAISE_ALERT,
                given.alert.model_copy(update={"count": count}),
                start_to_close_timeout=ALERT_TIMEOUT,
                retry_policy=ALERT_RETRIES,
                summary="alert",
            )
        return count
