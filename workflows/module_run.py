"""One run of a pipeline: its steps in order, each an activity that Temporal retries; parked when one is exhausted."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from redrive.categories import Category
    from redrive.contracts import (
        Activity,
        Query,
        Resolution,
        ResolveRequest,
        RunEnd,
        RunInput,
        RunResult,
        RunState,
        RunStatus,
        RunView,
        SearchAttribute,
        StepInput,
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
        MalformedCommand,
        ReceivedCommand,
        Replay,
        Resolve,
        Restart,
        RunCommand,
        RunDocument,
        RunSignal,
        Verb,
    )
    from redrive.documents import json_size
    from redrive.fairness import overflow_queue, turn_of
    from redrive.policy import SHORTEST_DELAY
    from redrive.visibility import search_attributes, shown_value, updates
    from redrive.workflows.attempts import drop_oldest_attempts
    from redrive.workflows.details import run_details
    from redrive.workflows.failures import attempts_when_crowded_out, failed_cycle
    from redrive.workflows.inputs import NOTHING, check_run_id, read_command, read_message, read_run_input
    from redrive.workflows.records import work_with_record
    from redrive.workflows.run_dead_letters import LOCAL_TIMEOUT, RunLetters
    from redrive.workflows.run_state import (
        begin_cycle,
        current_step,
        exhaust,
        misfit,
        next_step,
        parked_step,
        send_back,
        skip_rest,
        step_document,
        too_large,
    )

# The attempt stops itself at its policy's timeout and deadline; Temporal's own clock is the backstop for a dead worker.
BACKSTOP = timedelta(seconds=10)
HEARTBEAT_TIMEOUT = timedelta(seconds=10)
ONCE = RetryPolicy(maximum_attempts=1)


@workflow.defn(name=Workflow.MODULE_RUN)
class ModuleRun:
    """Run a pipeline's steps one after another; end SUCCESS, FAILED or CANCELED."""

    def __init__(self) -> None:
        self._run: RunInput | None = None
        self._input_size = 0
        self._state = RunState(steps=[])
        self._status = RunStatus.PENDING
        self._error: str | None = None
        self._letters: RunLetters | None = None
        self._inbox: deque[RunCommand] = deque()
        # A run that was parked when its history was cut short has reported it before.
        self._is_reported = True
        self._asked_to_report = False
        self._told_to_continue = False
        self._refused: str | None = None
        self._answers: dict[str, Answer] = {}

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> RunResult:
        try:
            self._run = run = self._read(raw)
            run.steps = run.steps or await self._resolve(run)
            letters = self._begin(run, run.steps)
            await self._run_steps(run, run.steps, letters)
        except BaseException as error:
            if is_cancelled_exception(error):
                await self._cancel()
            raise
        output = self._state.outputs[run.steps[-1].name]
        await _whatever_is_requested(self._end(run, output))
        return RunResult(
            run_id=workflow.info().workflow_id, status=self._status, output=output, steps=self._state.steps
        )

    async def _end(self, run: RunInput, output: Any) -> None:
        """Report the success, which the history has decided, to the database. Without one, the sweep reports it."""
        await workflow.wait_condition(workflow.all_handlers_finished)
        self._status = RunStatus.SUCCESS
        info = workflow.info()
        end = RunEnd(
            run_id=info.workflow_id,
            tenant=run.tenant,
            pipeline=run.pipeline,
            correlation_id=run.correlation_id or info.workflow_id,
            started_at=info.start_time,
            key=run.key,
            claim=run.claim,
            output=output if run.claim else None,
        )
        with contextlib.suppress(FailureError):
            await workflow.execute_local_activity(
                Activity.RECORD_END, end, start_to_close_timeout=LOCAL_TIMEOUT, retry_policy=ONCE
            )

    @workflow.query(name=Query.STATUS)
    def status(self) -> RunView:
        """Return the run's status. Temporal, not the run, knows what a pending retry waits for."""
        info = workflow.info()
        run = self._run
        return RunView(
            run_id=info.workflow_id,
            tenant=run.tenant if run else "",
            pipeline=run.pipeline if run else "",
            status=self._status,
            correlation_id=(run.correlation_id or info.workflow_id) if run else None,
            key=run.key if run else None,
            steps=self._state.steps,
            error=self._error,
            started_at=info.start_time,
        )

    @workflow.query(name=Query.DOCUMENT)
    def document(self) -> RunDocument:
        """Return what a command is checked against."""
        if self._run is None:
            raise ApplicationError("the run has not begun yet")
        run = self._run.model_copy(update={"state": self._state})
        return RunDocument(run=run, parked_at=parked_step(self._state))

    @workflow.signal(dynamic=True, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def take(self, name: str, arguments: Sequence[RawValue]) -> None:
        """Take what a dead letter signals, and `continue`; pass any other command on to its dead letter."""
        match name:
            case RunSignal.COMMAND:
                command = read_message(RunCommand, arguments)
                if isinstance(command, RunCommand):
                    self._inbox.append(command)
                else:
                    await self._refuse_unreadable(command)
            case RunSignal.REPORT:
                self._asked_to_report = True
            case Verb.CONTINUE:
                await self._take_continue(arguments)
            case _:
                letters = await self._begun()
                await letters.signal(current_step(self._state), name, arguments)

    async def _refuse_unreadable(self, problem: str) -> None:
        letter = (await self._begun()).id_of(current_step(self._state))
        self._show_refusal(problem)
        await work_with_record(
            Activity.RECORD_REFUSAL, letter, MalformedCommand(verb=RunSignal.COMMAND, problem=problem)
        )

    @workflow.update(dynamic=True, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def take_and_answer(self, name: str, arguments: Sequence[RawValue]) -> Answer:
        """Take `continue`, and answer whether it is possible; other commands are for dead letters."""
        if name != Verb.CONTINUE:
            message = f"{name[:64]!r} is no update of a run: send it to the dead letter, or as a signal"
            return Answer(request_id="", accepted=False, message=message)
        return await self._take_continue(arguments)

    async def _take_continue(self, arguments: Sequence[RawValue]) -> Answer:
        """Continue after a STEP_ONLY replay. The run does not wait for the audit log, but does not end before it."""
        letters = await self._begun()
        command = read_command(arguments, Verb.CONTINUE)
        letter = letters.id_of(self._state.stop_after or current_step(self._state))
        if not isinstance(command, Continue):
            problem = command if isinstance(command, str) else ""
            await self._record(Activity.RECORD_REFUSAL, letter, MalformedCommand(verb=Verb.CONTINUE, problem=problem))
            return Answer(request_id="", accepted=False, message=problem)
        if command.request_id not in self._answers:
            self._answers[command.request_id] = self._judge(command)
            await self._record(Activity.RECORD_CONTINUE, letter, command, self._answers[command.request_id])
        return self._answers[command.request_id]

    async def _record(self, activity: Activity, *arguments: object) -> None:
        await workflow.execute_local_activity(activity, args=arguments, start_to_close_timeout=LOCAL_TIMEOUT)

    def _judge(self, command: Continue) -> Answer:
        if self._status is not RunStatus.PARTIAL:
            message = f"the run is {self._status}: only a PARTIAL run waits for `continue`"
            return Answer(request_id=command.request_id, accepted=False, message=message)
        self._told_to_continue = True
        return Answer(request_id=command.request_id, accepted=True, message="the run goes on")

    async def _begun(self) -> RunLetters:
        """Wait until the run knows its steps."""
        while self._letters is None:
            await workflow.wait_condition(lambda: self._letters is not None)
        return self._letters

    def _read(self, raw: RawValue) -> RunInput:
        try:
            check_run_id(workflow.info().workflow_id)
            return read_run_input(raw, is_continued=workflow.info().continued_run_id is not None)
        except ApplicationError as error:
            self._error = error.message
            self._upsert(RunStatus.FAILED, Category.VALIDATION)
            raise

    async def _resolve(self, run: RunInput) -> list[StepSnapshot]:
        """Ask the registry for the steps of a run that was started by name, and write them into the history."""
        resolution: Resolution = await workflow.execute_local_activity(
            Activity.RESOLVE_PIPELINE,
            ResolveRequest(pipeline=run.pipeline, payload=run.payload),
            result_type=Resolution,
            start_to_close_timeout=LOCAL_TIMEOUT,
        )
        if resolution.problem:
            self._error = resolution.problem
            self._upsert(RunStatus.FAILED, Category.VALIDATION)
            raise ApplicationError(resolution.problem, type=resolution.code, non_retryable=True)
        return resolution.steps

    def _begin(self, run: RunInput, steps: list[StepSnapshot]) -> RunLetters:
        if run.state:
            self._state = run.state
        else:
            self._state.steps = [StepState(name=step.name, max_attempts=step.policy.max_attempts) for step in steps]
        self._input_size = len(run.model_dump_json(exclude={"state"}).encode())
        self._status = RunStatus.RUNNING
        if shown_value(workflow.info().typed_search_attributes, SearchAttribute.TENANT) is None:
            self._upsert(RunStatus.RUNNING)
        self._letters = RunLetters(run, self._state)
        return self._letters

    async def _run_steps(self, run: RunInput, steps: list[StepSnapshot], letters: RunLetters) -> None:
        while (index := next_step(self._state)) is not None:
            step = self._state.steps[index]
            self._stop_if_canceled()
            if step.status is not StepStatus.DLQ:
                self._continue_as_new_if_long(run)
                await self._run_step(run, steps[index], step)
                self._is_reported = False
            if step.status is StepStatus.DLQ:
                self._stop_if_canceled()
                await self._park(run, steps, step, letters)
                continue
            await letters.succeeded(step.name)
            if self._state.stop_after == step.name:
                await self._pause_if_partial()

    async def _run_step(self, run: RunInput, snapshot: StepSnapshot, step: StepState) -> None:
        begin_cycle(step, workflow.now())
        self._describe()
        try:
            result = await self._execute(run, snapshot, step)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            step.finished_at = workflow.now()
            exhaust(step, failed_cycle(error, step, step.finished_at))
            return
        step.finished_at = workflow.now()
        step.attempt, step.attempts, step.output_size = result.attempt, result.attempts, result.size
        problem = too_large(self._state, self._input_size, step)
        if problem:
            exhaust(step, problem)
            return
        self._state.outputs[step.name] = result.output
        step.status = StepStatus.SUCCESS
        drop_oldest_attempts(self._state.steps)

    async def _execute(self, run: RunInput, snapshot: StepSnapshot, step: StepState) -> StepResult:
        info = workflow.info()
        policy = self._state.policies.pop(step.name, snapshot.policy)
        given = StepInput(
            run_id=info.workflow_id,
            tenant=run.tenant,
            pipeline=run.pipeline,
            step=snapshot.model_copy(update={"policy": policy}),
            cycle=step.cycle,
            version=self._state.versions.get(step.name, 0),
            document=step_document(run, self._state, snapshot),
            correlation_id=run.correlation_id or info.workflow_id,
            user_id=run.user_id,
            event_id=run.event_id,
        )
        began = workflow.now()
        try:
            return await self._try(given, info.task_queue)
        except ActivityError as error:
            prior = attempts_when_crowded_out(error)
            if prior is None:
                raise
        # Other tenants come first on the queue that the step came from; in this one it waits for a slot.
        self._stop_if_canceled()
        given = given.model_copy(update={"prior": prior, "spent": workflow.now() - began})
        return await self._try(given, overflow_queue(info.task_queue))

    async def _try(self, given: StepInput, task_queue: str) -> StepResult:
        policy = given.step.policy
        tried = given.prior[-1].attempt if given.prior else 0
        handle = workflow.start_activity(
            Activity.RUN_STEP,
            given,
            result_type=StepResult,
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
        try:
            await workflow.wait_condition(handle.done)
        except asyncio.CancelledError:
            # Requested together with the step's completion, a cancellation must not undo what was perhaps reported.
            if not handle.done():
                handle.cancel()
        result: StepResult = await handle
        return result

    async def _park(self, run: RunInput, steps: list[StepSnapshot], step: StepState, letters: RunLetters) -> None:
        """Turn an exhausted step into a dead letter and wait until an operator's command has been carried out."""
        if step.failure is None:
            return
        snapshot = next(snapshot for snapshot in steps if snapshot.name == step.name)
        self._state.stop_after = None
        self._error = f"step {step.name!r} failed ({step.failure.category}): {step.failure.message}"
        self._upsert(RunStatus.DLQ_PENDING, step.failure.category, step.name)
        self._describe()
        if not self._is_reported:
            self._asked_to_report = False
            await letters.report(snapshot, step.failure)
            await letters.blocked(step.name)
        while step.status is StepStatus.DLQ:
            await workflow.wait_condition(lambda: bool(self._inbox) or self._asked_to_report or self._is_long())
            if self._inbox:
                await self._carry_out(self._inbox.popleft(), steps, step, letters)
            elif not self._asked_to_report:
                self._continue_as_new_if_long(run)
            else:
                self._asked_to_report = False
                await letters.report(snapshot, step.failure, again=True)
        self._error = self._refused = None
        self._upsert(RunStatus.RUNNING)

    async def _carry_out(
        self, given: RunCommand, steps: list[StepSnapshot], step: StepState, letters: RunLetters
    ) -> None:
        """Carry out an accepted command at the step that the run is parked at."""
        if (given.step, given.cycle) != (step.name, step.cycle):
            workflow.logger.warning("run.late_command_ignored: %s", given.command.verb)
            return
        problem = misfit(self._state, steps, given.command, step, self._input_size)
        if problem:
            # A dead letter sends only what it has checked: this was sent by hand.
            workflow.logger.warning("run.command_ignored: %s: %s", given.command.verb, problem)
            return
        if problem := await self._proof_problem(given, letters):
            self._show_refusal(problem)
            return
        match given.command:
            case Replay() as command:
                await self._read_inputs(steps)
                send_back(self._state, steps, command, step)
            case Resolve() as command:
                self._state.outputs[step.name], step.output_size = command.output, json_size(command.output)
                self._state.letters.pop(step.name, None)
                step.status = StepStatus.SUCCESS
            case Discard() as command:
                self._state.letters.pop(step.name, None)
                await letters.canceled()
                self._fail(step, f"discarded by {command.requested_by}: {command.reason}")
            case Restart():
                workflow.logger.warning("run.command_ignored: %s", given.command.verb)

    async def _read_inputs(self, steps: list[StepSnapshot]) -> None:
        """Let the steps read what their modules read today: a replay runs today's code."""
        with contextlib.suppress(FailureError):
            today: dict[str, list[str] | None] = await workflow.execute_local_activity(
                Activity.READ_INPUTS,
                [step.name for step in steps],
                result_type=dict[str, list[str] | None],
                start_to_close_timeout=LOCAL_TIMEOUT,
                retry_policy=ONCE,
            )
            for step in steps:
                step.reads = today.get(step.name, step.reads)

    async def _proof_problem(self, given: RunCommand, letters: RunLetters) -> str | None:
        """Ask the record whether it has accepted a command: anybody who reaches Temporal can send the signal."""
        handed = ReceivedCommand(
            letter=letters.id_of(given.step),
            verb=given.command.verb,
            request_id=given.command.request_id,
            requested_by=given.command.requested_by,
            proof=given.proof,
        )
        problem: str | None = await work_with_record(
            Activity.CHECK_COMMAND,
            handed,
            returns=str | None,  # type: ignore[arg-type]  # a union is a type for the converter
        )
        return problem

    def _show_refusal(self, problem: str) -> None:
        """Show on the run's page that it refused a command."""
        workflow.logger.warning("run.command_refused: %s", problem)
        self._refused = problem
        self._describe()

    def _fail(self, step: StepState, how: str) -> None:
        step.status = StepStatus.FAILED
        skip_rest(self._state, workflow.now())
        cycle = step.failure
        self._error = f"step {step.name!r} {how}"
        self._upsert(RunStatus.FAILED, cycle.category if cycle else None, step.name)
        self._describe()
        raise ApplicationError(self._error, cycle, type=cycle.category if cycle else None, non_retryable=True)

    async def _pause_if_partial(self) -> None:
        """Wait for `continue` after a STEP_ONLY replay that leaves later steps."""
        if next_step(self._state) is None:
            return
        self._upsert(RunStatus.PARTIAL)
        self._describe()
        await workflow.wait_condition(lambda: self._told_to_continue)
        self._told_to_continue = False
        self._state.stop_after = None
        self._upsert(RunStatus.RUNNING)

    def _stop_if_canceled(self) -> None:
        # A request that arrives together with a step's completion does not interrupt anything by itself.
        if workflow.cancellation_reason() is not None:
            raise asyncio.CancelledError

    def _continue_as_new_if_long(self, run: RunInput) -> None:
        if self._is_long() and not self._inbox:
            workflow.continue_as_new(run.model_copy(update={"state": self._state}))

    def _is_long(self) -> bool:
        return workflow.info().is_continue_as_new_suggested() and workflow.all_handlers_finished()

    async def _cancel(self) -> None:
        self._status = RunStatus.CANCELED
        self._error = workflow.cancellation_reason() or None
        skip_rest(self._state, workflow.now())
        self._upsert(RunStatus.CANCELED)
        self._describe()
        if self._letters:
            await self._letters.canceled()

    def _describe(self) -> None:
        if self._run:
            workflow.set_current_details(run_details(self._run, self._status, self._state.steps, self._refused))

    def _upsert(self, status: RunStatus, category: Category | None = None, step: str | None = None) -> None:
        """Update the run's search attributes. Not called on the way to success: a start sets all it needs."""
        self._status = status
        wanted = search_attributes(
            tenant=self._run.tenant if self._run else None,
            pipeline=self._run.pipeline if self._run else None,
            status=status,
            failed_step=step,
            category=category,
        )
        workflow.upsert_search_attributes(updates(wanted))


async def _whatever_is_requested(work: Coroutine[Any, Any, None]) -> None:
    """Finish the work: a cancellation that is requested when all steps have succeeded comes too late."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
