"""Workflows that maintain the records: idempotency keys, the purge, anchors of the audit log, the retry sweep.

The sweep over all keys, the purge and the anchors run on schedules. The retry sweep is always running somewhere, on
another process if one dies: it decides only who sweeps next. Its work is one long activity after another; the number of
messages does not affect the history.
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy

with workflow.unsafe.imports_passed_through():
    from redrive.contracts import Activity, AnchorMark, ClaimRequest, KeySweep, PurgeReport, SweepInput, Workflow
    from redrive.workflows.inputs import NOTHING, read_input, read_no_input
    from redrive.workflows.records import work_with_record


# The next sweep continues where this one has to stop.
KEYS_TIMEOUT = timedelta(minutes=10)
KEYS_HEARTBEAT_TIMEOUT = timedelta(seconds=10)
# Unlimited: whatever was down, the stores are compared as soon as it is back.
KEYS_RETRIES = RetryPolicy(initial_interval=timedelta(seconds=2), maximum_interval=timedelta(seconds=10))
RETRIES = RetryPolicy(initial_interval=timedelta(seconds=10), maximum_interval=timedelta(minutes=5), maximum_attempts=5)
# The next purge continues where this one has to stop.
PURGE_TIMEOUT = timedelta(hours=2)
# Verifying a long audit log, before it is cut, sends no heartbeat.
PURGE_HEARTBEAT_TIMEOUT = timedelta(minutes=10)
ANCHOR_TIMEOUT = timedelta(minutes=5)
# A process that dies is noticed after this.
SWEEP_HEARTBEAT_TIMEOUT = timedelta(seconds=5)
# The time that an activity may take beyond its shift, to finish the current batch.
SWEEP_MARGIN = timedelta(minutes=2)
# Unlimited: the broker or the database is down, and will be back.
SWEEP_RETRIES = RetryPolicy(
    initial_interval=timedelta(milliseconds=200), backoff_coefficient=2, maximum_interval=timedelta(seconds=2)
)


@workflow.defn(name=Workflow.EXPIRE_KEYS)
class ExpireKeys:
    """Settle runs and keys whose end was never recorded, repair what the stores differ in, and delete expired keys."""

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> KeySweep:
        read_no_input(raw)
        sweep: KeySweep = await workflow.execute_activity(
            Activity.EXPIRE_KEYS,
            result_type=KeySweep,
            start_to_close_timeout=KEYS_TIMEOUT,
            heartbeat_timeout=KEYS_HEARTBEAT_TIMEOUT,
            retry_policy=KEYS_RETRIES,
        )
        return sweep


@workflow.defn(name=Workflow.RECORD_KEY)
class RecordKey:
    """Write the row of a key that was used while the database was down."""

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> None:
        await work_with_record(Activity.RECORD_KEY, read_input(ClaimRequest, raw))


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
            heartbeat_timeout=PURGE_HEARTBEAT_TIMEOUT,
            retry_policy=RETRIES,
        )
        return report


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
                start_to_close_timeout=given.shift + SWEEP_MARGIN,
                heartbeat_timeout=SWEEP_HEARTBEAT_TIMEOUT,
                retry_policy=SWEEP_RETRIES,
            )
        workflow.continue_as_new(given)
