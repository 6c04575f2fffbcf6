"""One run of a pipeline: its steps in order, each an activity that Temporal retries."""

import asyncio
from datetime import timedelta
from typing import NoReturn

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy, SearchAttributeKey
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from redrive.contracts import (
        DOCUMENT_LIMIT,
        Activity,
        FailedCycle,
        Query,
        Resolution,
        ResolveRequest,
        RunInput,
        RunResult,
        RunState,
        RunStatus,
        RunView,
        SearchAttribute,
        StepOrder,
        StepResult,
        StepSnapshot,
        StepState,
        StepStatus,
        Workflow,
    )
    from redrive.documents import step_input
    from redrive.errors import Category
    from redrive.policy import SHORTEST_DELAY, terminal_types
    from workflows.attempts import drop_oldest_attempts
    from workflows.details import run_details
    from workflows.failures import failed_cycle
    from workflows.inputs import NOTHING, read_run_input

# The attempt stops itself at its policy's timeout and deadline; Temporal's own clock is the backstop for a dead worker.
BACKSTOP = timedelta(seconds=10)
HEARTBEAT_TIMEOUT = timedelta(seconds=10)
RESOLVE_TIMEOUT = timedelta(seconds=10)


@workflow.defn(name=Workflow.MODULE_RUN)
class ModuleRun:
    """Run a pipeline's steps one after another; end SUCCESS, FAILED or CANCELED."""

    def __init__(self) -> None:
        self._order: RunInput | None = None
        self._order_size = 0
        self._state = RunState(steps=[])
        self._status = RunStatus.PENDING
        self._error: str | None = None

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> RunResult:
        try:
            self._order = order = self._read(raw)
            steps = order.steps or await self._resolve(order)
            order.steps = steps
            self._begin(order, steps)
            for snapshot, step in zip(steps, self._state.steps, strict=True):
                if step.status is not StepStatus.SUCCESS:
                    self._stop_if_canceled()
                    self._continue_as_new_if_long(order)
                    await self._run_step(order, snapshot, step)
        except BaseException as error:
            if is_cancelled_exception(error):
                self._cancel()
            raise
        self._status = RunStatus.SUCCESS
        last = steps[-1].name
        return RunResult(
            run_id=workflow.info().workflow_id,
            status=self._status,
            output=self._state.outputs[last],
            steps=self._state.steps,
        )

    @workflow.query(name=Query.STATUS)
    def status(self) -> RunView:
        """Answer where the run is. What a pending retry waits for is known to Temporal, not here."""
        info = workflow.info()
        order = self._order
        return RunView(
            run_id=info.workflow_id,
            tenant=order.tenant if order else "",
            pipeline=order.pipeline if order else "",
            status=self._status,
            correlation_id=(order.correlation_id or info.workflow_id) if order else None,
            key=order.key if order else None,
            steps=self._state.steps,
            error=self._error,
            started_at=info.start_time,
        )

    def _read(self, raw: RawValue) -> RunInput:
        try:
            return read_run_input(raw)
        except ApplicationError as error:
            self._error = error.message
            self._upsert(RunStatus.FAILED, Category.VALIDATION)
            raise

    async def _resolve(self, order: RunInput) -> list[StepSnapshot]:
        """Ask the registry for the steps of a run that was started by name, and write them into the history."""
        resolution: Resolution = await workflow.execute_local_activity(
            Activity.RESOLVE_PIPELINE,
            ResolveRequest(pipeline=order.pipeline, payload=order.payload),
            result_type=Resolution,
            start_to_close_timeout=RESOLVE_TIMEOUT,
        )
        if resolution.problem:
            self._error = resolution.problem
            self._upsert(RunStatus.FAILED, Category.VALIDATION)
            raise ApplicationError(resolution.problem, type=resolution.code, non_retryable=True)
        return resolution.steps

    def _begin(self, order: RunInput, steps: list[StepSnapshot]) -> None:
        if order.state:
            self._state = order.state
        else:
            self._state.steps = [StepState(name=step.name, max_attempts=step.policy.max_attempts) for step in steps]
        self._order_size = len(order.model_dump_json(exclude={"state"}).encode())
        self._status = RunStatus.RUNNING
        if workflow.info().typed_search_attributes.get(SearchAttributeKey.for_keyword(SearchAttribute.TENANT)) is None:
            self._upsert(RunStatus.RUNNING)

    async def _run_step(self, order: RunInput, snapshot: StepSnapshot, step: StepState) -> None:
        step.status = StepStatus.RUNNING
        step.cycle += 1
        self._describe()
        try:
            result = await self._execute(order, snapshot, step)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            self._exhausted(step, failed_cycle(error, step, workflow.now()))
        step.attempt, step.attempts, step.output_size = result.attempt, result.attempts, result.size
        self._check_document(step)
        self._state.outputs[step.name] = result.output
        step.status = StepStatus.SUCCESS
        drop_oldest_attempts(self._state.steps)

    async def _execute(self, order: RunInput, snapshot: StepSnapshot, step: StepState) -> StepResult:
        info, policy = workflow.info(), snapshot.policy
        result: StepResult = await workflow.execute_activity(
            Activity.RUN_STEP,
            StepOrder(
                run_id=info.workflow_id,
                tenant=order.tenant,
                pipeline=order.pipeline,
                step=snapshot,
                cycle=step.cycle,
                document=step_input(order.payload | self._state.outputs, snapshot.reads),
                correlation_id=order.correlation_id or info.workflow_id,
                user_id=order.user_id,
            ),
            result_type=StepResult,
            start_to_close_timeout=policy.timeout + BACKSTOP,
            schedule_to_close_timeout=policy.deadline + BACKSTOP if policy.deadline else None,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=RetryPolicy(
                initial_interval=max(policy.base, SHORTEST_DELAY),
                backoff_coefficient=policy.factor,
                maximum_interval=policy.cap,
                maximum_attempts=policy.most_attempts,
                non_retryable_error_types=terminal_types(),
            ),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=snapshot.name,
        )
        return result

    def _exhausted(self, step: StepState, cycle: FailedCycle) -> NoReturn:
        """End the run: the step's cycle is over and did not heal."""
        step.failure, step.attempts = cycle, cycle.attempts
        step.attempt = max([step.attempt, *(entry.attempt for entry in cycle.attempts)])
        step.status = StepStatus.FAILED
        self._skip_rest()
        self._error = f"step {step.name!r} failed ({cycle.category}): {cycle.message}"
        self._upsert(RunStatus.FAILED, cycle.category, step.name)
        self._describe()
        raise ApplicationError(self._error, cycle, type=cycle.category, non_retryable=True)

    def _check_document(self, step: StepState) -> None:
        total = self._order_size + sum(state.output_size or 0 for state in self._state.steps)
        if total > DOCUMENT_LIMIT:
            message = (
                f"payload and outputs of the run are {total} bytes together; the limit is {DOCUMENT_LIMIT} "
                "(return a reference to large data)"
            )
            cycle = FailedCycle(
                step=step.name,
                cycle=step.cycle,
                category=Category.TOO_LARGE,
                error_type="TooLarge",
                message=message,
                attempts=step.attempts,
            )
            self._exhausted(step, cycle)

    def _stop_if_canceled(self) -> None:
        # A request that arrives together with a step's completion does not interrupt anything by itself.
        if workflow.cancellation_reason() is not None:
            raise asyncio.CancelledError

    def _continue_as_new_if_long(self, order: RunInput) -> None:
        if workflow.info().is_continue_as_new_suggested():
            workflow.continue_as_new(order.model_copy(update={"state": self._state}))

    def _cancel(self) -> None:
        self._status = RunStatus.CANCELED
        self._error = workflow.cancellation_reason() or None
        self._skip_rest()
        self._upsert(RunStatus.CANCELED)
        self._describe()

    def _skip_rest(self) -> None:
        for step in self._state.steps:
            if step.status in {StepStatus.PENDING, StepStatus.RUNNING}:
                step.status = StepStatus.SKIPPED

    def _describe(self) -> None:
        if self._order:
            workflow.set_current_details(run_details(self._order, self._status, self._state.steps))

    def _upsert(self, status: RunStatus, category: Category | None = None, step: str | None = None) -> None:
        """Show the run's state in Temporal's lists. Not called on the way to success: a start sets all it needs."""
        self._status = status
        values = {
            SearchAttribute.TENANT: self._order.tenant if self._order else None,
            SearchAttribute.PIPELINE: self._order.pipeline if self._order else None,
            SearchAttribute.STATUS: status,
            SearchAttribute.FAILED_STEP: step,
            SearchAttribute.CATEGORY: category,
        }
        workflow.upsert_search_attributes(
            [SearchAttributeKey.for_keyword(name).value_set(value) for name, value in values.items() if value]
        )
