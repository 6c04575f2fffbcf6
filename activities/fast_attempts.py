"""The first attempt of a fast step, made inside the workflow task, and the activity that goes on when it failed.

Temporal does not count attempts inside workflow tasks, and cannot let an activity wait before it starts. So the
activity that goes on reports the failed attempt again, as its own first: its number, failure and delay are then
Temporal's, as if there had been no other.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError

from redrive.activities.attempts import to_details
from redrive.contracts import AttemptError, FailedCycle, StepInput
from redrive.policy import SHORTEST_DELAY

ANSWER_TIMEOUT: Final = timedelta(seconds=2)


async def check_may_be_fast(given: StepInput) -> None:
    """Raise if an attempt had better not run inside the workflow task: it then runs as an ordinary activity.

    A step that kills its worker would be tried forever, for its workflow task is. An activity's attempts are counted.
    """
    if activity.is_worker_shutdown():
        raise _not_fast("the worker is being stopped")
    if given.maybe_again and await _is_tried_again():
        raise _not_fast("the workflow task was tried before, and perhaps the step with it")


async def _is_tried_again() -> bool:
    info = activity.info()
    run = activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
    try:
        description = await run.describe(rpc_timeout=ANSWER_TIMEOUT)
    except RPCError:
        return True
    return description.raw_description.pending_workflow_task.attempt > 1


def _not_fast(why: str) -> ApplicationError:
    return ApplicationError(why, type="not_fast", non_retryable=True, category=ApplicationErrorCategory.BENIGN)


def is_unreported(failed: FailedCycle) -> bool:
    """Tell whether this activity has still to report the fast attempt: it may have died when it first did."""
    info = activity.info()
    if info.heartbeat_details:
        return False
    last = failed.attempts[-1]
    return last.delay is None or info.attempt == 1 or datetime.now(UTC) < last.at + last.delay


def reported_again(failed: FailedCycle) -> ApplicationError:
    """Return the error of the fast attempt, with what is left of its delay."""
    last = failed.attempts[-1]
    wait = None
    if last.delay is not None:
        # Bounded by the delay itself, in case this machine's clock differs from that of the attempt.
        wait = max(SHORTEST_DELAY, min(last.delay, last.at + last.delay - datetime.now(UTC)))
        activity.heartbeat(to_details(failed.attempts))
    return ApplicationError(
        failed.message,
        AttemptError(**failed.model_dump(include=set(AttemptError.model_fields))),
        type=failed.category,
        non_retryable=wait is None,
        next_retry_delay=wait,
        category=ApplicationErrorCategory.BENIGN,
    )
