"""One run of a pipeline: its steps in order, each an activity that Temporal retries; parked when one is exhausted."""

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, TypedSearchAttributes
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from redrive.categories import Category
    from redrive.contracts import (
        KEEPS_END,
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
        Update,
        Workflow,
    )
    from redrive.dead_letters import (
        ANSWERS_KEPT,
        Answer,
        Command,
        Continue,
        Discard,
        LetterCommand,
        MalformedCommand,
        Replay,
        Reply,
        Resolve,
        Restart,
        RunDocument,
        RunSignal,
    )
    from redrive.documents import json_size
    from redrive.visibility import search_attributes, shown_value, updates
    from redrive.workflows.details import run_details
    from redrive.workflows.failures import drop_oldest_attempts, failed_cycle
    from redrive.workflows.inputs import NOTHING, check_run_id, read_command, read_run_input
    from redrive.workflows.records import ReceivedSignals, update_message_id, work_with_record
    from redrive.workflows.run_dead_letters import LOCAL_TIMEOUT, RunLetters
    from redrive.workflows.run_state import (
        begin_cycle,
        current_step,
        exhaust,
        next_revision,
        next_step,
        parked_step,
        place_of,
        refusal,
        send_back,
        skip_rest,
        step_document,
        too_large,
    )
    from redrive.workflows.step_execution import ONCE, RunStepExecution, stop_if_canceled

# Long enough for Temporal to set a timer.
HISTORY_INTERVAL = timedelta(milliseconds=1)
# Longer than a local activity that records something.
HANDLERS_TIMEOUT = timedelta(seconds=5)
# Most replays are over by then. A list that changes with the run's end costs the server nothing more.
LISTED_AFTER = timedelta(seconds=10)


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
        self._execution = RunStepExecution()
        self._judging = asyncio.Lock()
        # The step whose discard is being recorded: the run ends by it.
        self._ends_by: str | None = None
        self._discarded: str | None = None
        # A run that was parked when its history was cut short has reported it before.
        self._is_reported = True
        self._asked_to_report = False
        self._told_to_continue = False
        # Until then, Temporal lists a run that continues as parked.
        self._listing: asyncio.Task[None] | None = None
        self._is_listed_later = False
        self._refused: str | None = None
        self._answers: dict[str, Answer] = {}
        self._received = ReceivedSignals()

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
        await _whatever_is_requested(self._end(run, output, letters))
        return RunResult(
            run_id=workflow.info().workflow_id, status=self._status, output=output, steps=self._state.steps
        )

    async def _end(self, run: RunInput, output: Any, letters: RunLetters) -> None:
        """Report the success, which the history has decided, to the database. Without one, the sweep reports it."""
        is_taken = await letters.ended(self._state.steps[-1].name, lambda: self._run_end(run, output))
        if self._listing:
            self._upsert(RunStatus.RUNNING)
        self._status = RunStatus.SUCCESS
        await self._let_handlers_finish()
        if is_taken:
            return
        if self._execution.is_end_kept:
            _keep(self._run_end(run, output))
            return
        with contextlib.suppress(FailureError):
            await workflow.execute_local_activity(
                Activity.RECORD_END,
                self._run_end(run, output),
                start_to_close_timeout=LOCAL_TIMEOUT,
                retry_policy=ONCE,
            )

    def _run_end(self, run: RunInput, output: Any) -> RunEnd:
        info = workflow.info()
        return RunEnd(
            run_id=info.workflow_id,
            tenant=run.tenant,
            pipeline=run.pipeline,
            correlation_id=run.correlation_id or info.workflow_id,
            started_at=info.start_time,
            key=run.key,
            claim=run.claim,
            labels=run.labels,
            output=output if run.claim else None,
            when_closed=self._execution.is_unrecorded,
            revision=next_revision(self._state, workflow.now()),
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
            labels=run.labels if run else {},
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

    @workflow.query(name=Query.ANSWER)
    def answer(self, request_id: str) -> Reply:
        """Return the answer to a command, once there is one."""
        return Reply(answer=self._answers.get(request_id), is_open=not self._status.closed)

    # In the same workflow task as the command, if it is sent with it; a query that waits would split that task.
    @workflow.update(name=Update.ANSWER, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def wait_for_answer(self, request_id: str) -> Reply:
        """Return the answer to a command as soon as there is one, or that none is to be expected for now."""
        is_long = workflow.info().is_continue_as_new_suggested
        await workflow.wait_condition(lambda: request_id in self._answers or self._is_ending() or is_long())
        return self.answer(request_id)

    # Abandoned when the run ends: who sent a command then asks the dead letter.
    @workflow.signal(dynamic=True, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def take(self, name: str, arguments: Sequence[RawValue]) -> None:
        """Take a command, or the request to report again."""
        message_id = self._received.next_id()
        if name == RunSignal.REPORT:
            self._asked_to_report = True
        else:
            await self._take(name, arguments, message_id)

    @workflow.update(dynamic=True, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def take_and_answer(self, name: str, arguments: Sequence[RawValue]) -> Answer:
        """Take a command and answer it."""
        # An update is in the history when its first task is over. Before that, nothing may be recorded of it.
        await workflow.sleep(HISTORY_INTERVAL)
        return await self._take(name, arguments, update_message_id())

    async def _take(self, name: str, arguments: Sequence[RawValue], message_id: str) -> Answer:
        """Judge commands one after another: of two at once, one wins. The same one again gets the first answer."""
        letters = await self._begun()
        command = read_command(arguments, name)
        if isinstance(command, str):
            letter = letters.id_of(current_step(self._state))
            self._show_refusal(command)
            refused = MalformedCommand(verb=name[:64], problem=command, message_id=message_id)
            await work_with_record(Activity.RECORD_REFUSAL, letter, refused)
            return Answer(request_id="", accepted=False, message=command)
        async with self._judging:
            if self._is_ending():
                # Not kept: who asks for the answer is sent to the dead letter.
                return Answer(request_id=command.request_id, accepted=False, message="the run has ended")
            answer = self._answers.get(command.request_id) or await self._judge(command, letters)
        self._answers[command.request_id] = answer
        while len(self._answers) > ANSWERS_KEPT:
            self._answers.pop(next(iter(self._answers)))
        return answer

    async def _judge(self, command: Command, letters: RunLetters) -> Answer:
        """Have a command recorded, then carry it out. One that is canceled meanwhile is carried out all the same."""
        if isinstance(command, Continue):
            return await self._judge_continue(command, letters)
        steps = self._run.steps or [] if self._run else []
        name = command.step or current_step(self._state)
        problem = refusal(self._state, steps, command, name, self._input_size)
        self._ends_by = name if isinstance(command, Discard) else None
        recorded = await letters.record(command, name, problem)
        self._ends_by = None
        if recorded.command is None:
            if not recorded.answer.accepted:
                self._show_refusal(recorded.answer.message)
            return recorded.answer
        for step in steps:
            # A replay runs today's code, which may read more than the code that the run was started with.
            step.reads = recorded.reads.get(step.name, step.reads)
        self._is_listed_later = recorded.listed_later
        self._carry_out(recorded.command, steps, self._state.steps[place_of(self._state, name)])
        return recorded.answer

    async def _judge_continue(self, command: Continue, letters: RunLetters) -> Answer:
        """Continue after a STEP_ONLY replay."""
        is_possible = self._status is RunStatus.PARTIAL
        message = "the run goes on" if is_possible else f"the run is {self._status}: only a PARTIAL run can continue"
        answer = Answer(request_id=command.request_id, accepted=is_possible, message=message)
        letter = letters.id_of(self._state.stop_after or current_step(self._state))
        await work_with_record(Activity.RECORD_CONTINUE, letter, command, answer)
        self._told_to_continue = self._told_to_continue or is_possible
        return answer

    def _carry_out(self, command: LetterCommand, steps: list[StepSnapshot], step: StepState) -> None:
        """Change the state as an accepted command demands; the run continues from it."""
        match command:
            case Replay():
                send_back(self._state, steps, command, step)
            case Resolve():
                self._state.outputs[step.name], step.output_size = command.output, json_size(command.output)
                self._state.letters.pop(step.name, None)
                step.status = StepStatus.SUCCESS
            case Discard():
                self._state.letters.pop(step.name, None)
                self._discarded = f"discarded by {command.requested_by}: {command.reason}"
            case Restart():
                workflow.logger.warning("run.command_ignored: %s", command.verb)

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
            stop_if_canceled()
            if step.status is not StepStatus.DLQ:
                self._continue_as_new_if_long(run)
                await self._run_step(run, steps[index], step)
                self._is_reported = False
            if step.status is StepStatus.DLQ:
                stop_if_canceled()
                await self._park(run, step, letters)
                continue
            if next_step(self._state) is not None:
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
            await self._execution.recorded()
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
            labels=run.labels,
        )
        return await self._execution.run(given, info.task_queue)

    async def _park(self, run: RunInput, step: StepState, letters: RunLetters) -> None:
        """Turn an exhausted step into a dead letter and wait until an operator's command has been carried out."""
        if step.failure is None:
            return
        self._state.stop_after = None
        self._error = f"step {step.name!r} failed ({step.failure.category}): {step.failure.message}"
        self._upsert(RunStatus.DLQ_PENDING, step.failure.category, step.name)
        self._describe()
        if not self._is_reported:
            self._asked_to_report = False
            await letters.report(step.name, step.failure)
            await letters.blocked(step.name)
        while self._waits_at(step):
            await self._wait_at(step)
            if self._waits_at(step) and self._should_report():
                self._asked_to_report = False
                await letters.report(step.name, step.failure, again=True)
            elif self._waits_at(step):
                self._continue_as_new_if_long(run)
        if self._discarded:
            await self._let_handlers_finish()
            await letters.canceled()
            self._fail(step, self._discarded)
        self._error = self._refused = None
        if self._is_listed_later:
            self._status = RunStatus.RUNNING
            self._listing = asyncio.create_task(self._list_as_running())
        else:
            self._upsert(RunStatus.RUNNING)

    async def _list_as_running(self) -> None:
        await workflow.sleep(LISTED_AFTER)
        self._listing = None
        self._upsert(RunStatus.RUNNING)

    async def _wait_at(self, step: StepState) -> None:
        """Wait for something to do. A cancellation comes too late for a discard that is being recorded."""
        try:
            await workflow.wait_condition(lambda: not self._waits_at(step) or self._should_report() or self._is_long())
        except asyncio.CancelledError:
            await workflow.wait_condition(lambda: self._ends_by is None)
            if not self._discarded:
                raise

    def _is_ending(self) -> bool:
        return self._status.closed or self._discarded is not None

    async def _let_handlers_finish(self) -> None:
        """Wait for commands that are being refused, but not for a database that is down: they are abandoned then."""
        if not workflow.all_handlers_finished():
            with contextlib.suppress(TimeoutError):
                await workflow.wait_condition(workflow.all_handlers_finished, timeout=HANDLERS_TIMEOUT)

    def _waits_at(self, step: StepState) -> bool:
        return step.status is StepStatus.DLQ and self._discarded is None

    def _should_report(self) -> bool:
        # Not while a command is being recorded: the record would be opened again behind it.
        return self._asked_to_report and not self._judging.locked()

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

    def _continue_as_new_if_long(self, run: RunInput) -> None:
        if self._is_long():
            if self._listing:
                self._upsert(RunStatus.RUNNING)
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
            await self._let_handlers_finish()
            await self._letters.canceled()

    def _describe(self) -> None:
        if self._run:
            workflow.set_current_details(run_details(self._run, self._status, self._state.steps, self._refused))

    def _upsert(self, status: RunStatus, category: Category | None = None, step: str | None = None) -> None:
        """Update the run's search attributes. Not called on the way to success: a start sets all it needs."""
        self._status, shown = status, TypedSearchAttributes.empty
        if self._listing:
            # A run that ends takes its timer along.
            if status is not RunStatus.RUNNING:
                self._listing.cancel()
            self._listing, shown = None, workflow.info().typed_search_attributes
        wanted = search_attributes(
            tenant=self._run.tenant if self._run else None,
            pipeline=self._run.pipeline if self._run else None,
            status=status,
            failed_step=step,
            category=category,
        )
        if changed := updates(wanted, shown):
            workflow.upsert_search_attributes(changed)


def _keep(end: RunEnd) -> None:
    """Hand a run's end to its worker, which writes it once Temporal has it."""
    if not workflow.unsafe.is_replaying():
        workflow.extern_functions()[KEEPS_END](workflow.info().run_id, end)


async def _whatever_is_requested(work: Coroutine[Any, Any, None]) -> None:
    """Finish the work: a cancellation that is requested when all steps have succeeded comes too late."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
