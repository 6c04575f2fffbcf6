"""What one would write with nothing but Temporal, for a step that fails for good.

`HandWrittenRun` catches the failure, writes a record to PostgreSQL by an activity, waits for a signal, runs the step
again, and closes the record by an activity. It has no second workflow, audit log, check of the command, alert, edit of
the input, or list of attempts.

`ParkingRun` is the floor: it only waits for the signal. It notes for the benchmark that it is parked, which costs less
than any other way to learn it.
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from tests.bench.letter_steps import (
        PARKED_FILE,
        Done,
        Errand,
        LetterRow,
        close_record,
        note,
        plain_fragile,
        write_record,
    )
    from tests.bench.plain import RETRY

TIMEOUT = timedelta(seconds=60)


class _Signalled:
    """Waits for as many commands as were sent."""

    def __init__(self) -> None:
        self._commands = 0

    async def wait(self) -> None:
        """Wait for the next command."""
        await workflow.wait_condition(lambda: self._commands > 0)
        self._commands -= 1


@workflow.defn
class HandWrittenRun(_Signalled):
    """Run the step until it succeeds, once for each signal, with a record while it does not."""

    @workflow.run
    async def run(self, errand: Errand) -> Done:
        row: LetterRow | None = None
        while True:
            try:
                done = await workflow.execute_activity(
                    plain_fragile, errand, start_to_close_timeout=TIMEOUT, retry_policy=RETRY
                )
                break
            except ActivityError as error:
                row = LetterRow(run_id=workflow.info().workflow_id, errand=errand, error=str(error.cause))
                await workflow.execute_activity(write_record, row, start_to_close_timeout=TIMEOUT)
            await self.wait()
        if row:
            await workflow.execute_activity(close_record, row.run_id, start_to_close_timeout=TIMEOUT)
        return done

    @workflow.signal
    def replay(self) -> None:
        """Go on."""
        self._commands += 1


@workflow.defn
class ParkingRun(_Signalled):
    """Run the step until it succeeds, once for each signal."""

    @workflow.run
    async def run(self, errand: Errand) -> Done:
        while True:
            try:
                return await workflow.execute_activity(
                    plain_fragile, errand, start_to_close_timeout=TIMEOUT, retry_policy=RETRY
                )
            except ActivityError:
                if not workflow.unsafe.is_replaying():
                    with workflow.unsafe.sandbox_unrestricted():
                        note(errand, PARKED_FILE)
            await self.wait()

    @workflow.signal
    def replay(self) -> None:
        """Go on."""
        self._commands += 1
