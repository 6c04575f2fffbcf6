"""One dead letter: keeps its record in Postgres, takes operators' commands, signals them to the run, gets the outcome.

It knows its run only by workflow id and by the signals in `redrive.dead_letters`. Everything that reaches it goes
through one inbox and is handled in sequence: of two commands at once, one wins.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from redrive.contracts import Activity, Workflow
    from redrive.dead_letters import (
        ANSWERS_KEPT,
        PROBLEM_LIMIT,
        Alert,
        Answer,
        Command,
        CommandRecorded,
        CommandRequest,
        Continue,
        Discard,
        Exhausted,
        LetterCommand,
        LetterInput,
        LetterRecorded,
        LetterSignal,
        LetterState,
        LetterStatus,
        MalformedCommand,
        Outcome,
        Replay,
        Resolve,
        Restart,
        refusal,
        status_after,
        status_after_outcome,
    )
    from redrive.visibility import search_attributes, updates
    from redrive.workflows.alert_follow_up import ALERT_RETRIES, ALERT_TIMEOUT
    from redrive.workflows.details import letter_details
    from redrive.workflows.inputs import NOTHING, read_command, read_input, read_message
    from redrive.workflows.records import work_with_record


@workflow.defn(name=Workflow.DEAD_LETTER)
class DeadLetter:
    """Keep one dead letter until it is replayed, resolved or discarded."""

    # Set by `run`, whose input may be anything; what arrives before waits in the inbox.
    _state: LetterState

    def __init__(self) -> None:
        self._begun = False
        self._loaded = False
        self._inbox: deque[Exhausted | Outcome | LetterCommand | MalformedCommand] = deque()
        self._alerts: set[asyncio.Task[None]] = set()

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> LetterStatus:
        given = read_input(LetterInput, raw)
        self._state = given.state or LetterState(letter=given.letter)
        self._loaded = given.state is not None
        self._begun = True
        while True:
            await workflow.wait_condition(lambda: bool(self._inbox) or self._should_continue_as_new())
            if self._inbox:
                await self._handle(self._inbox.popleft())
                self._describe()
            if self._state.status.closed and await self._is_idle():
                return self._state.status
            if self._should_continue_as_new() and await self._is_idle():
                workflow.continue_as_new(LetterInput(letter=given.letter, state=self._state))

    async def _is_idle(self) -> bool:
        """Wait for answers and alerts under way, and return whether nothing else has arrived meanwhile."""
        await workflow.wait_condition(
            lambda: bool(self._inbox) or (workflow.all_handlers_finished() and not self._alerts)
        )
        return not self._inbox

    @workflow.signal(dynamic=True)
    def take(self, name: str, arguments: Sequence[RawValue]) -> None:
        """Take a command, or a report from the run. What cannot be read is refused and recorded."""
        match name:
            case LetterSignal.EXHAUSTED:
                self._note(name, read_message(Exhausted, arguments))
            case LetterSignal.OUTCOME:
                self._note(name, read_message(Outcome, arguments))
            case _:
                self._note(name, read_command(arguments, name))

    # Abandoned only by a dead letter that could not read its input: any other one waits for them.
    @workflow.update(dynamic=True, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def take_and_answer(self, name: str, arguments: Sequence[RawValue]) -> Answer:
        """Take a command, and answer when its outcome is known."""
        command = self._note(name, read_command(arguments, name))
        if not isinstance(command, Replay | Resolve | Discard | Restart):
            problem = command.problem if isinstance(command, MalformedCommand) else ""
            status = self._state.status if self._begun else None
            return Answer(request_id="", accepted=False, message=problem, status=status)
        await workflow.wait_condition(lambda: self._begun and command.request_id in self._state.answers)
        return self._state.answers[command.request_id]

    def _note(
        self, name: str, message: Exhausted | Outcome | Command | str
    ) -> Exhausted | Outcome | LetterCommand | MalformedCommand:
        if isinstance(message, Continue):
            message = "`continue` is a command for the run, not for a dead letter"
        entry = MalformedCommand(verb=name[:64], problem=message) if isinstance(message, str) else message
        self._inbox.append(entry)
        return entry

    async def _handle(self, message: Exhausted | Outcome | LetterCommand | MalformedCommand) -> None:
        match message:
            case Exhausted() if message.letter != self._state.letter:
                problem = f"it tells of {message.letter.workflow_id[:PROBLEM_LIMIT]!r}, another dead letter"
                await self._handle(MalformedCommand(verb=LetterSignal.EXHAUSTED, problem=problem))
            case Exhausted():
                await self._on_exhausted(message)
            case Outcome():
                await self._on_outcome(message)
            case MalformedCommand():
                await self._load()
                await work_with_record(Activity.RECORD_REFUSAL, self._state.letter, message)
            case Replay() | Resolve() | Discard() | Restart():
                await self._on_command(message)

    async def _on_exhausted(self, message: Exhausted) -> None:
        if message.again and self._state.command:
            # The command was signalled since this workflow started: it is on its way, behind the run's report.
            return
        recorded: LetterRecorded = await work_with_record(Activity.RECORD_EXHAUSTED, message, returns=LetterRecorded)
        answers, cycle = self._state.answers, message.cycle
        self._state = recorded.state.model_copy(update={"answers": answers, "cycle": cycle})
        self._loaded = True
        self._upsert()
        if recorded.alert:
            # Awaited only before the end: a dead alert channel must not delay commands.
            alert = asyncio.create_task(_raise_alert(recorded.alert))
            self._alerts.add(alert)
            alert.add_done_callback(self._alerts.discard)

    async def _on_command(self, command: LetterCommand) -> None:
        await self._load()
        answers = self._state.answers
        if command.request_id not in answers:
            request = CommandRequest(
                letter=self._state.letter,
                command=command,
                refusal=refusal(self._state, command),
                status=self._state.status,
                cycle=self._state.cycles,
            )
            recorded: CommandRecorded = await work_with_record(
                Activity.RECORD_COMMAND, request, returns=CommandRecorded
            )
            answers[command.request_id] = recorded.answer
            while len(answers) > ANSWERS_KEPT:
                answers.pop(next(iter(answers)))
            self._state.orphaned = self._state.orphaned or recorded.orphaned
            if recorded.under_way:
                self._take_up(command)

    def _take_up(self, command: LetterCommand) -> None:
        """Note that the run now has a command."""
        self._state.status = status_after(command)
        self._state.command = command
        self._state.replays += isinstance(command, Replay)
        self._upsert()

    async def _on_outcome(self, outcome: Outcome) -> None:
        await self._load()
        if self._state.status.closed:
            return
        await work_with_record(Activity.RECORD_OUTCOME, self._state.letter, outcome)
        self._state.status = status_after_outcome(outcome)
        self._state.blocked_by = outcome.blocked_by
        self._state.command = None
        self._upsert()

    async def _load(self) -> None:
        """Read the record, if a command has started this workflow again after the dead letter was closed."""
        if self._loaded:
            return
        found: LetterState | None = await work_with_record(
            Activity.LOAD_LETTER,
            self._state.letter,
            returns=LetterState | None,  # type: ignore[arg-type]  # a union is a type for the converter
        )
        self._state = found or self._state.model_copy(update={"exists": False, "status": LetterStatus.DISCARDED})
        self._loaded = True

    def _should_continue_as_new(self) -> bool:
        return workflow.info().is_continue_as_new_suggested()

    def _describe(self) -> None:
        workflow.set_current_details(letter_details(self._state))

    def _upsert(self) -> None:
        """Update the dead letter's search attributes, if they have changed."""
        state = self._state
        wanted = search_attributes(
            tenant=state.letter.tenant,
            pipeline=state.pipeline,
            status=state.status,
            failed_step=state.letter.step,
            category=state.cycle.category if state.cycle else None,
        )
        if changed := updates(wanted, workflow.info().typed_search_attributes):
            workflow.upsert_search_attributes(changed)


async def _raise_alert(alert: Alert) -> None:
    try:
        await workflow.execute_activity(
            Activity.RAISE_ALERT,
            alert,
            start_to_close_timeout=ALERT_TIMEOUT,
            retry_policy=ALERT_RETRIES,
            summary="alert",
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        workflow.logger.warning("alert.given_up: %s", alert.letter.workflow_id)
