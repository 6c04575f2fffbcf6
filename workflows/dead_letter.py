"""One dead letter: writes its record in Postgres, and is open while the record is.

What its run reports is recorded in sequence. A command that reaches it is passed on to the run, which records it and
carries it out; if the run is gone, the command is carried out without it.

The follow-up of an alert reports the failures that the alert suppressed. It is a separate workflow: it outlives the
dead letters that it reports, and costs one task for thousands of them.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from redrive.contracts import Activity, Workflow
    from redrive.dead_letters import (
        PROBLEM_LIMIT,
        Alert,
        Answer,
        Closed,
        Continue,
        Exhausted,
        FollowUp,
        LetterId,
        LetterInput,
        LetterRecorded,
        LetterSignal,
        LetterStatus,
        MalformedCommand,
        Outcome,
        PassedOn,
    )
    from redrive.workflows.details import letter_details
    from redrive.workflows.inputs import NOTHING, read_command, read_input, read_message
    from redrive.workflows.records import RECORD_RETRIES, ReceivedSignals, update_message_id, work_with_record


# Longer than the activity waits for the run's answer.
PASS_ON_TIMEOUT = timedelta(seconds=30)
COUNT_TIMEOUT = timedelta(seconds=5)
COUNT_RETRIES = RetryPolicy(maximum_interval=timedelta(seconds=20))
ALERT_TIMEOUT = timedelta(seconds=30)
ALERT_RETRIES = RetryPolicy(maximum_attempts=8, maximum_interval=timedelta(minutes=5))


@workflow.defn(name=Workflow.DEAD_LETTER)
class DeadLetter:
    """Keep one dead letter until it is replayed, resolved or discarded."""

    # Set by `run`, whose input may be anything; what arrives before waits.
    _letter: LetterId

    def __init__(self) -> None:
        self._begun = False
        self._status: LetterStatus | None = None
        # Of the run's last report that a step is exhausted.
        self._revision = 0
        self._has_message = False
        self._received = ReceivedSignals()
        self._inbox: deque[tuple[Exhausted | Outcome | Closed, str]] = deque()
        self._alerts: set[asyncio.Task[None]] = set()

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> LetterStatus | None:
        given = read_input(LetterInput, raw)
        self._letter, self._status, self._revision = given.letter, given.status, given.revision
        self._begun = True
        while True:
            await workflow.wait_condition(lambda: bool(self._inbox) or self._is_over() or self._is_long())
            if self._inbox:
                await self._handle(*self._inbox.popleft())
            elif self._is_over():
                return self._status
            else:
                carried = LetterInput(letter=given.letter, status=self._status, revision=self._revision)
                workflow.continue_as_new(carried)

    def _is_over(self) -> bool:
        """Tell whether the record is closed, or was never there, and everything that arrived is dealt with."""
        is_open = self._status is not None and not self._status.closed
        return self._has_message and not is_open and self._is_idle()

    def _is_long(self) -> bool:
        return workflow.info().is_continue_as_new_suggested() and self._is_idle()

    def _is_idle(self) -> bool:
        return not self._inbox and not self._alerts and workflow.all_handlers_finished()

    # Abandoned only by a dead letter that could not read its input: any other one waits for them.
    @workflow.signal(dynamic=True, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def take(self, name: str, arguments: Sequence[RawValue]) -> None:
        """Take a report from the run, or a command. What cannot be read is refused and recorded."""
        self._has_message = True
        message_id = self._received.next_id()
        match name:
            case LetterSignal.EXHAUSTED:
                await self._note(name, read_message(Exhausted, arguments), message_id)
            case LetterSignal.OUTCOME:
                await self._note(name, read_message(Outcome, arguments), message_id)
            case LetterSignal.CLOSED:
                await self._note(name, read_message(Closed, arguments), message_id)
            case _:
                await self._command(name, arguments, message_id)

    @workflow.update(dynamic=True, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def take_and_answer(self, name: str, arguments: Sequence[RawValue]) -> Answer:
        """Take a command, and answer when its answer is known."""
        self._has_message = True
        return await self._command(name, arguments, update_message_id())

    async def _note(self, name: str, message: Exhausted | Outcome | Closed | str, message_id: str) -> None:
        if isinstance(message, str):
            await self._refuse(name, message, message_id)
        else:
            self._inbox.append((message, message_id))

    async def _command(self, name: str, arguments: Sequence[RawValue], message_id: str) -> Answer:
        """Pass a command on to the run; if the run is gone, have it carried out without."""
        await workflow.wait_condition(lambda: self._begun)
        command = read_command(arguments, name)
        if isinstance(command, Continue):
            command = "`continue` is a command for the run, not for a dead letter"
        if isinstance(command, str):
            await self._refuse(name, command, message_id)
            return Answer(request_id="", accepted=False, message=command)
        passed: PassedOn = await workflow.execute_activity(
            Activity.PASS_ON_COMMAND,
            args=[self._letter, command.model_copy(update={"step": self._letter.step})],
            result_type=PassedOn,
            start_to_close_timeout=PASS_ON_TIMEOUT,
            retry_policy=RECORD_RETRIES,
            summary=command.verb.value,
        )
        self._status = passed.status or self._status
        return passed.answer

    async def _refuse(self, name: str, problem: str, message_id: str) -> None:
        await workflow.wait_condition(lambda: self._begun)
        refused = MalformedCommand(verb=name[:64], problem=problem, message_id=message_id)
        await work_with_record(Activity.RECORD_REFUSAL, self._letter, refused)

    async def _handle(self, message: Exhausted | Outcome | Closed, message_id: str) -> None:
        match message:
            case Exhausted() if message.letter != self._letter:
                problem = f"it tells of {message.letter.workflow_id[:PROBLEM_LIMIT]!r}, another dead letter"
                await self._refuse(LetterSignal.EXHAUSTED, problem, message_id)
            case Exhausted():
                await self._on_exhausted(message)
            case Outcome():
                self._status = await work_with_record(
                    Activity.RECORD_OUTCOME,
                    self._letter,
                    # Whatever came before it is written.
                    message.model_copy(update={"after": 0}),
                    returns=LetterStatus | None,  # type: ignore[arg-type]  # a union is a type for the converter
                )
            case Closed() if message.revision is None or message.revision > self._revision:
                # An older one comes from a worker that was frozen: the step has been exhausted again since.
                self._status = message.status

    async def _on_exhausted(self, message: Exhausted) -> None:
        recorded: LetterRecorded = await work_with_record(Activity.RECORD_EXHAUSTED, message, returns=LetterRecorded)
        self._status = recorded.status
        self._revision = max(self._revision, message.revision)
        workflow.set_current_details(letter_details(self._letter, message.pipeline, message.cycle))
        if recorded.alert:
            # Awaited only before the end: a dead alert channel must not delay anything.
            alert = asyncio.create_task(_raise_alert(recorded.alert))
            self._alerts.add(alert)
            alert.add_done_callback(self._alerts.discard)


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


@workflow.defn(name=Workflow.ALERT_FOLLOW_UP)
class AlertFollowUp:
    """Raise one more alert, if there are suppressed failures that nobody has reported meanwhile."""

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> int:
        given = read_input(FollowUp, raw)
        count: int = await workflow.execute_activity(
            Activity.TAKE_SUPPRESSED,
            given,
            result_type=int,
            start_to_close_timeout=COUNT_TIMEOUT,
            retry_policy=COUNT_RETRIES,
        )
        if count:
            await workflow.execute_activity(
                Activity.RAISE_ALERT,
                given.alert.model_copy(update={"count": count}),
                start_to_close_timeout=ALERT_TIMEOUT,
                retry_policy=ALERT_RETRIES,
                summary="alert",
            )
        return count
