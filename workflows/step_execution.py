"""How a workflow has steps executed: each by an activity, the first attempt of a fast one inside the workflow task.

The history has the result of a fast step only when the workflow task is over. Until then it may run again, so nothing
that depends on it is reported to anybody.
"""

import asyncio
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from redrive.contracts import FAST_TIMEOUT, KEEPS_END, Activity, StepInput, StepResult
    from redrive.fairness import overflow_queue, turn_of
    from redrive.policy import SHORTEST_DELAY
    from redrive.workflows.failures import attempts_when_crowded_out, failed_fast

# The attempt stops itself at its policy's timeout and deadline; Temporal's own clock is the backstop for a dead worker.
BACKSTOP: Final = timedelta(seconds=10)
# An attempt sends one every two seconds. The step of a worker that was killed begins again after this.
HEARTBEAT_TIMEOUT: Final = timedelta(seconds=6)
ONCE: Final = RetryPolicy(maximum_attempts=1)
# The events of a run that is in its first workflow task, for the first time: started, task scheduled, task started.
FIRST_TASK: Final = 3


class StepExecution:
    """Executes the steps of one workflow run. A cancellation is left to the code that waits for a step."""

    def __init__(self) -> None:
        # How long the history was in the last workflow task that is known to be tried for the first time.
        self._sure_at = FIRST_TASK
        # After a workflow task was lost: one of the steps in it may have killed the worker.
        self._is_careful = False
        self.is_unrecorded = False
        """Whether the last step was a fast one, whose result the history does not have yet."""
        self.is_end_kept = False
        """Whether the worker of that last step takes the run's end from the workflow itself."""

    async def run(self, given: StepInput, queue: str) -> StepResult:
        """Execute a step, by workers of a queue, until it succeeds or is exhausted."""
        began = workflow.now()
        try:
            outcome = await self._run_fast(given) if _is_fast(given) and not self._is_careful else given
            return outcome if isinstance(outcome, StepResult) else await self._run(outcome, queue)
        except FailureError as error:
            prior = attempts_when_crowded_out(error)
            if prior is None:
                raise
        # Other tenants come first on the queue that the step came from; in this one it waits for a slot.
        self._stop_if_canceled()
        given = given.model_copy(update={"prior": prior, "spent": workflow.now() - began})
        return await self._run(given, overflow_queue(queue))

    async def _run_fast(self, given: StepInput) -> StepResult | StepInput:
        """Attempt a step inside the workflow task; if it fails, return the input for the activity that goes on."""
        began = workflow.now()
        task = workflow.info().get_current_history_length()
        handle = workflow.start_local_activity(
            Activity.RUN_STEP,
            _packed(given.model_copy(update={"maybe_again": task != self._sure_at})),
            result_type=RawValue,
            start_to_close_timeout=given.step.policy.timeout + BACKSTOP,
            retry_policy=ONCE,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=given.step.name,
        )
        try:
            raw = await self._ended(handle)
        except FailureError as error:
            if is_cancelled_exception(error) or attempts_when_crowded_out(error) is not None:
                raise
            self._stop_if_canceled()
            failed = failed_fast(error, given)
            self._is_careful = failed is None
            return given.model_copy(update={"failed": failed, "spent": workflow.now() - began})
        self._sure_at = task
        self.is_unrecorded = True
        self.is_end_kept = KEEPS_END in raw.payload.metadata
        return _result(raw)

    async def _run(self, given: StepInput, task_queue: str) -> StepResult:
        """Attempt a step by an activity, which Temporal retries. The workflow task ends with that."""
        self.is_unrecorded = self.is_end_kept = False
        return _result(await self._ended(_started(given, task_queue)))

    async def recorded(self) -> None:
        """Wait until the history has the results of all steps."""
        if self.is_unrecorded:
            await workflow.sleep(SHORTEST_DELAY)
            self.is_unrecorded = self.is_end_kept = False

    async def _ended(self, handle: workflow.ActivityHandle[RawValue]) -> RawValue:
        return await handle

    def _stop_if_canceled(self) -> None:
        """Stop between two activities of a step; code that cleans up after a cancellation may run steps."""


class RunStepExecution(StepExecution):
    """Executes the steps of a pipeline run, which a cancellation ends."""

    async def _ended(self, handle: workflow.ActivityHandle[RawValue]) -> RawValue:
        try:
            await workflow.wait_condition(handle.done)
        except asyncio.CancelledError:
            # Requested together with the step's completion, a cancellation must not undo what was perhaps reported.
            if not handle.done():
                handle.cancel()
        return await handle

    def _stop_if_canceled(self) -> None:
        stop_if_canceled()


def _is_fast(given: StepInput) -> bool:
    """Tell whether the first attempt runs inside the workflow task. A replay does not: its dead letter is waiting."""
    return given.step.fast and given.cycle == 1 and given.step.policy.timeout <= FAST_TIMEOUT


def _packed(given: StepInput) -> RawValue:
    """Serialise here: a workflow that is no pipeline run may have a converter that knows no models."""
    return RawValue(Payload(metadata={"encoding": b"json/plain"}, data=given.model_dump_json().encode()))


def _result(raw: RawValue) -> StepResult:
    return StepResult.model_validate_json(raw.payload.data)


def _started(given: StepInput, task_queue: str) -> workflow.ActivityHandle[RawValue]:
    policy = given.step.policy
    tried = given.prior[-1].attempt if given.prior else 0
    return workflow.start_activity(
        Activity.RUN_STEP,
        _packed(given),
        result_type=RawValue,
        task_queue=task_queue,
        start_to_close_timeout=policy.timeout + BACKSTOP,
        schedule_to_close_timeout=max(policy.deadline - given.spent, SHORTEST_DELAY) + BACKSTOP
        if policy.deadline
        else None,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=RetryPolicy(
            initial_interval=max(policy.base, SHORTEST_DELAY),
            backoff_coefficient=policy.factor,
            maximum_interval=policy.cap,
            maximum_attempts=max(policy.most_attempts - tried, 1),
        ),
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        summary=given.step.name,
        # A run that was started by hand has none to inherit.
        priority=turn_of(given.tenant),
    )


def stop_if_canceled() -> None:
    """Stop the run if its cancellation is requested."""
    # A request that arrives together with a step's completion does not interrupt anything by itself.
    if workflow.cancellation_reason() is not None:
        raise asyncio.CancelledError
