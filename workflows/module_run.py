"""One run of a pipeline: its steps in order, each an activity that Temporal retries; parked when one is exhausted."""

import asyncio
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy, SearchAttributeKey
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from redrive.contracts import (
        DOCUMENT_LIMIT,
        Activity,
        FailedCycle,
        LastStep,
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
    from redrive.dead_letters import (
        Answer,
        Continue,
        Discard,
        Ending,
        ExhaustedReport,
        LetterId,
        LetterSignal,
        MalformedOrder,
        Mode,
        Order,
        Outcome,
        OwnerSignal,
        Replay,
        Resolve,
        Restart,
        RunDocument,
        Verb,
    )
    from redrive.documents import json_size, patched, step_input
    from redrive.errors import Category
    from redrive.policy import SHORTEST_DELAY
    from workflows.attempts import drop_oldest_attempts
    from workflows.details import run_details
    from workflows.edits import count_edit
    from workflows.failures import failed_cycle
    from workflows.inputs import NOTHING, read_order, read_run_input

# The attempt stops itself at its policy's timeout and deadline; Temporal's own clock is the backstop for a dead worker.
BACKSTOP = timedelta(seconds=10)
HEARTBEAT_TIMEOUT = timedelta(seconds=10)
LOCAL_TIMEOUT = timedelta(seconds=10)


@workflow.defn(name=Workflow.MODULE_RUN)
class ModuleRun:
    """Run a pipeline's steps one after another; end SUCCESS, FAILED or CANCELED."""

    def __init__(self) -> None:
        self._order: RunInput | None = None
        self._order_size = 0
        self._state = RunState(steps=[])
        self._status = RunStatus.PENDING
        self._error: str | None = None
        self._inbox: deque[Order] = deque()
        self._answers: dict[str, Answer] = {}

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> RunResult:
        try:
            self._order = order = self._read(raw)
            order.steps = order.steps or await self._resolve(order)
            self._begin(order, order.steps)
            await self._run_steps(order, order.steps)
        except BaseException as error:
            if is_cancelled_exception(error):
                await self._cancel()
            raise
        await workflow.wait_condition(workflow.all_handlers_finished)
        self._status = RunStatus.SUCCESS
        return RunResult(
            run_id=workflow.info().workflow_id,
            status=self._status,
            output=self._state.outputs[order.steps[-1].name],
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

    @workflow.query(name=Query.DOCUMENT)
    def document(self) -> RunDocument:
        """Answer what an order is checked against."""
        if self._order is None:
            raise ApplicationError("the run has not begun yet")
        parked = next((step.name for step in self._state.steps if step.status is StepStatus.DLQ), None)
        return RunDocument(run=self._order.model_copy(update={"state": self._state}), parked_at=parked)

    @workflow.signal(dynamic=True, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def take(self, name: str, arguments: Sequence[RawValue]) -> None:
        """Take what a dead letter hands on, and `continue`; pass any other order on to the dead letter it is for."""
        match name:
            case OwnerSignal.ORDER:
                order = read_order(arguments)
                if not isinstance(order, str):
                    self._inbox.append(order)
            case Verb.CONTINUE:
                await self._take_continue(arguments)
            case _:
                await workflow.wait_condition(lambda: bool(self._state.steps))
                await self._signal_letter(self._current_step(), name, arguments)

    @workflow.update(dynamic=True, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def take_and_answer(self, name: str, arguments: Sequence[RawValue]) -> Answer:
        """Take `continue`, and answer whether it is possible; other orders are for dead letters."""
        if name != Verb.CONTINUE:
            message = f"{name[:64]!r} is no update of a run: send it to the dead letter, or as a signal"
            return Answer(request_id="", accepted=False, message=message)
        return await self._take_continue(arguments)

    async def _take_continue(self, arguments: Sequence[RawValue]) -> Answer:
        """Go on after a STEP_ONLY replay. The run does not wait for the audit log, but does not end before it."""
        await workflow.wait_condition(lambda: bool(self._state.steps))
        order = read_order(arguments, Verb.CONTINUE)
        letter = self._letter(self._state.stop_after or self._current_step())
        if not isinstance(order, Continue):
            problem = order if isinstance(order, str) else ""
            await self._record(Activity.RECORD_REFUSAL, letter, MalformedOrder(verb=Verb.CONTINUE, problem=problem))
            return Answer(request_id="", accepted=False, message=problem)
        if order.request_id not in self._answers:
            self._answers[order.request_id] = self._judge(order)
            await self._record(Activity.RECORD_CONTINUE, letter, order, self._answers[order.request_id])
        return self._answers[order.request_id]

    async def _record(self, activity: Activity, *arguments: object) -> None:
        await workflow.execute_local_activity(activity, args=arguments, start_to_close_timeout=LOCAL_TIMEOUT)

    def _judge(self, order: Continue) -> Answer:
        if self._status is not RunStatus.PARTIAL:
            message = f"the run is {self._status}: only a PARTIAL run waits for `continue`"
            return Answer(request_id=order.request_id, accepted=False, message=message)
        self._inbox.append(order)
        return Answer(request_id=order.request_id, accepted=True, message="the run goes on")

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
            start_to_close_timeout=LOCAL_TIMEOUT,
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

    async def _run_steps(self, order: RunInput, steps: list[StepSnapshot]) -> None:
        while (index := self._next_step()) is not None:
            step = self._state.steps[index]
            self._stop_if_canceled()
            self._continue_as_new_if_long(order)
            await self._run_step(order, steps[index], step)
            if step.status is StepStatus.DLQ:
                await self._park(order, steps[index], step)
            elif self._state.stop_after == step.name:
                await self._pause_if_partial()

    def _current_step(self) -> str:
        """Return the step that an order to the run means: the one that it is at."""
        index = self._next_step()
        return self._state.steps[-1 if index is None else index].name

    def _next_step(self) -> int | None:
        return next((i for i, step in enumerate(self._state.steps) if step.status is not StepStatus.SUCCESS), None)

    async def _run_step(self, order: RunInput, snapshot: StepSnapshot, step: StepState) -> None:
        step.status, step.failure = StepStatus.RUNNING, None
        step.cycle += 1
        self._describe()
        try:
            result = await self._execute(order, snapshot, step)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            self._exhaust(step, failed_cycle(error, step, workflow.now()))
            return
        step.attempt, step.attempts, step.output_size = result.attempt, result.attempts, result.size
        too_large = self._document_problem(step)
        if too_large:
            self._exhaust(step, too_large)
            return
        self._state.outputs[step.name] = result.output
        step.status = StepStatus.SUCCESS
        drop_oldest_attempts(self._state.steps)
        await self._tell_letter(
            step.name, Outcome(ending=Ending.SUCCEEDED, request_id=self._state.letters.get(step.name))
        )

    async def _execute(self, order: RunInput, snapshot: StepSnapshot, step: StepState) -> StepResult:
        info = workflow.info()
        policy = self._state.policies.pop(step.name, snapshot.policy)
        document = self._step_document(order, snapshot)
        result: StepResult = await workflow.execute_activity(
            Activity.RUN_STEP,
            StepOrder(
                run_id=info.workflow_id,
                tenant=order.tenant,
                pipeline=order.pipeline,
                step=snapshot.model_copy(update={"policy": policy}),
                cycle=step.cycle,
                version=self._state.versions.get(step.name, 0),
                document=document,
                correlation_id=order.correlation_id or info.workflow_id,
                user_id=order.user_id,
                event_id=order.event_id,
                last=self._last_step(order, step),
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
            ),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=snapshot.name,
        )
        return result

    def _last_step(self, order: RunInput, step: StepState) -> LastStep | None:
        if step is not self._state.steps[-1]:
            return None
        return LastStep(started_at=workflow.info().start_time, key=order.key, claim=order.claim)

    def _step_document(self, order: RunInput, snapshot: StepSnapshot) -> dict[str, Any]:
        """Return a step's input: the part of the run's document that it reads, with operators' edits."""
        document = step_input(order.payload | self._state.outputs, snapshot.reads)
        return patched(document, self._state.patches.get(snapshot.name, []))

    def _exhaust(self, step: StepState, cycle: FailedCycle) -> None:
        step.failure, step.attempts = cycle, cycle.attempts
        step.attempt = max([step.attempt, *(entry.attempt for entry in cycle.attempts)])
        step.status = StepStatus.DLQ

    async def _park(self, order: RunInput, snapshot: StepSnapshot, step: StepState) -> None:
        """Make a dead letter of an exhausted step and wait until an operator's order has been carried out."""
        if step.failure is None:
            return
        self._state.stop_after = None
        self._error = f"step {step.name!r} failed ({step.failure.category}): {step.failure.message}"
        self._upsert(RunStatus.DLQ_PENDING, step.failure.category, step.name)
        self._describe()
        await self._report(order, snapshot, step, step.failure)
        await self._block_later_letters(step)
        while step.status is StepStatus.DLQ:
            await workflow.wait_condition(lambda: bool(self._inbox))
            await self._carry_out(self._inbox.popleft(), step)
        self._error = None
        self._upsert(RunStatus.RUNNING)

    async def _report(self, order: RunInput, snapshot: StepSnapshot, step: StepState, cycle: FailedCycle) -> None:
        self._state.letters[step.name] = None
        await workflow.execute_local_activity(
            Activity.REPORT_EXHAUSTED,
            ExhaustedReport(
                letter=self._letter(step.name),
                pipeline=order.pipeline,
                snapshot=snapshot,
                cycle=cycle,
                document=self._step_document(order, snapshot),
                correlation_id=order.correlation_id or workflow.info().workflow_id,
                key=order.key,
                claim=order.claim,
                at=workflow.now(),
            ),
            start_to_close_timeout=LOCAL_TIMEOUT,
        )

    async def _block_later_letters(self, dead: StepState) -> None:
        """Tell the dead letters of later steps that they wait for this one now."""
        position = [step.name for step in self._state.steps].index(dead.name)
        for later in self._state.steps[position + 1 :]:
            outcome = Outcome(
                ending=Ending.BLOCKED, request_id=self._state.letters.get(later.name), blocked_by=dead.name
            )
            if later.name in self._state.letters:
                await self._signal_letter(later.name, LetterSignal.OUTCOME, [outcome])
                # What becomes of it now is the outcome of an order to the earlier one.
                self._state.letters[later.name] = None

    async def _carry_out(self, order: Order, step: StepState) -> None:
        """Do what an accepted order says with the step that the run is parked at."""
        match order:
            case Replay():
                self._restart_from(order, step)
            case Resolve():
                self._state.outputs[step.name], step.output_size = order.output, json_size(order.output)
                self._state.letters.pop(step.name, None)
                step.status = StepStatus.SUCCESS
            case Discard():
                self._state.letters.pop(step.name, None)
                await self._close_letters()
                self._fail(step, f"discarded by {order.requested_by}: {order.reason}")
            case Restart() | Continue():
                workflow.logger.warning("run.order_ignored: %s", order.verb)

    def _restart_from(self, order: Replay, dead: StepState) -> None:
        names = [step.name for step in self._state.steps]
        first = order.from_step or dead.name
        self._state.letters[dead.name] = order.request_id
        self._state.stop_after = dead.name if order.mode is Mode.STEP_ONLY else None
        if order.input_patch is not None:
            self._state.patches.setdefault(first, []).append(order.input_patch)
            count_edit(self._state.versions, self._order.steps if self._order else None, first)
        if order.policy is not None and self._order and self._order.steps:
            policy = self._order.steps[names.index(first)].policy
            self._state.policies[first] = policy.model_validate(policy.model_dump() | order.policy)
        for step in self._state.steps[names.index(first) :]:
            step.status, step.output_size, step.failure = StepStatus.PENDING, None, None
            self._state.outputs.pop(step.name, None)

    def _fail(self, step: StepState, how: str) -> None:
        step.status = StepStatus.FAILED
        self._skip_rest()
        cycle = step.failure
        self._error = f"step {step.name!r} {how}"
        self._upsert(RunStatus.FAILED, cycle.category if cycle else None, step.name)
        self._describe()
        raise ApplicationError(self._error, cycle, type=cycle.category if cycle else None, non_retryable=True)

    async def _pause_if_partial(self) -> None:
        """Wait for `continue` after a STEP_ONLY replay that leaves later steps."""
        if self._next_step() is None:
            return
        self._upsert(RunStatus.PARTIAL)
        self._describe()
        await workflow.wait_condition(lambda: any(isinstance(order, Continue) for order in self._inbox))
        self._inbox.clear()
        self._state.stop_after = None
        self._upsert(RunStatus.RUNNING)

    def _letter(self, step: str) -> LetterId:
        tenant = self._order.tenant if self._order else ""
        return LetterId(tenant=tenant, run_id=workflow.info().workflow_id, step=step)

    async def _tell_letter(self, step: str, outcome: Outcome) -> None:
        if step in self._state.letters:
            await self._signal_letter(step, LetterSignal.OUTCOME, [outcome])
            del self._state.letters[step]

    async def _close_letters(self) -> None:
        """Tell the dead letters that are open still that the run ends."""
        for step in list(self._state.letters):
            await self._tell_letter(step, Outcome(ending=Ending.CANCELED, request_id=self._state.letters[step]))

    async def _signal_letter(self, step: str, signal: str, arguments: Sequence[object]) -> None:
        letter = self._letter(step)
        try:
            await workflow.get_external_workflow_handle(letter.workflow_id).signal(signal, args=arguments)
        except ApplicationError:
            # The letter is closed, was terminated or never was: starting it makes it read its record and answer.
            await workflow.execute_local_activity(
                Activity.SIGNAL_LETTER,
                args=[letter, signal, arguments[0] if len(arguments) == 1 else None],
                start_to_close_timeout=LOCAL_TIMEOUT,
            )

    def _document_problem(self, step: StepState) -> FailedCycle | None:
        total = self._order_size + sum(state.output_size or 0 for state in self._state.steps)
        if total <= DOCUMENT_LIMIT:
            return None
        message = (
            f"payload and outputs of the run are {total} bytes together; the limit is {DOCUMENT_LIMIT} "
            "(return a reference to large data)"
        )
        return FailedCycle(
            step=step.name,
            cycle=step.cycle,
            category=Category.TOO_LARGE,
            error_type="TooLarge",
            message=message,
            attempts=step.attempts,
        )

    def _stop_if_canceled(self) -> None:
        # A request that arrives together with a step's completion does not interrupt anything by itself.
        if workflow.cancellation_reason() is not None:
            raise asyncio.CancelledError

    def _continue_as_new_if_long(self, order: RunInput) -> None:
        if workflow.info().is_continue_as_new_suggested() and not self._inbox and workflow.all_handlers_finished():
            workflow.continue_as_new(order.model_copy(update={"state": self._state}))

    async def _cancel(self) -> None:
        self._status = RunStatus.CANCELED
        self._error = workflow.cancellation_reason() or None
        self._skip_rest()
        self._upsert(RunStatus.CANCELED)
        self._describe()
        await self._close_letters()

    def _skip_rest(self) -> None:
        for step in self._state.steps:
            if step.status in {StepStatus.PENDING, StepStatus.RUNNING, StepStatus.DLQ}:
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
