"""The floor: a workflow that uses nothing but Temporal, parks when its activity has failed, and is signalled on.

It writes no record, starts no second workflow, checks no command and tells nobody. It notes for the benchmark that
it is parked, which costs less than any other way to learn it.
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from tests.bench.letter_steps import PARKED_FILE, Done, Errand, note, plain_fragile
    from tests.bench.plain import RETRY


@workflow.defn
class ParkingRun:
    """Run the step until it succeeds, once for each signal."""

    def __init__(self) -> None:
        self._commands = 0

    @workflow.run
    async def run(self, errand: Errand) -> Done:
        while True:
            try:
                return await workflow.execute_activity(
                    plain_fragile, errand, start_to_close_timeout=timedelta(seconds=60), retry_policy=RETRY
                )
            except ActivityError:
                if not workflow.unsafe.is_replaying():
                    with workflow.unsafe.sandbox_unrestricted():
                        note(errand, PARKED_FILE)
            await workflow.wait_condition(lambda: self._commands > 0)
            self._commands -= 1

    @workflow.signal
    def replay(self) -> None:
        """Go on."""
        self._commands += 1
