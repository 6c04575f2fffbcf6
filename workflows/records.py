"""How workflows use the records in Postgres."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from redrive.contracts import Activity
    from redrive.dead_letters import RECORD_BEHIND, CommandRecorded
    from redrive.keys import short_hash

LOCAL_TIMEOUT = timedelta(seconds=3)
RECORD_TIMEOUT = timedelta(seconds=5)
RECORD_RETRIES = RetryPolicy(maximum_interval=timedelta(seconds=20), non_retryable_error_types=[RECORD_BEHIND])
BEHIND_INTERVAL = timedelta(seconds=1)


class ReceivedSignals:
    """Numbers the signals of one execution: ids of those that bring none.

    The history has the signals in their order, so a repeated workflow task gives each the same id.
    """

    def __init__(self) -> None:
        self._count = 0

    def next_id(self) -> str:
        """Return the id of the signal that is being received."""
        self._count += 1
        return f"{workflow.info().run_id}:signal-{self._count}"


def update_message_id() -> str:
    """Return an id of the update that is being handled. Its own one is its sender's text: only a hash of it is kept."""
    info = workflow.current_update_info()
    return f"{workflow.info().run_id}:update-{short_hash(info.id if info else '')}"


async def until_current(
    ask: Callable[[], Awaitable[CommandRecorded | None]], report_again: Callable[[], Awaitable[None]]
) -> CommandRecorded:
    """Have a command recorded. A record that is behind is told again where the workflow is parked: that counts."""
    while (recorded := await ask()) is None:
        await report_again()
        await workflow.sleep(BEHIND_INTERVAL)
    return recorded


async def work_with_record(activity: Activity, *arguments: object, returns: type | None = None) -> Any:
    """Use a record: at once in the worker that has this task, and if that fails, in any worker, with retries.

    A local activity holds one of its worker's places for workflow tasks. Those that wait for the database must not
    take them all: runs that need no database would also wait.
    """
    try:
        return await workflow.execute_local_activity(
            activity,
            args=arguments,
            result_type=returns,
            start_to_close_timeout=LOCAL_TIMEOUT,
            retry_policy=RetryPolicy(maximum_attempts=1),
        )
    except FailureError as error:
        # Not ActivityError: rebuilt from history, a local activity's failure is not wrapped in it.
        if is_cancelled_exception(error):
            raise
    return await workflow.execute_activity(
        activity,
        args=arguments,
        result_type=returns,
        start_to_close_timeout=RECORD_TIMEOUT,
        retry_policy=RECORD_RETRIES,
        summary="the database did not answer at once",
    )


def is_behind(error: ActivityError) -> bool:
    """Tell whether an activity failed because the record does not say that the run is parked where it is."""
    return isinstance(error.cause, ApplicationError) and error.cause.type == RECORD_BEHIND
