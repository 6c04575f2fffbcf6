"""Dead letters: the queue that writes their records in PostgreSQL, and the workflow of one that needs longer.

Runs signal what they report to a queue of their tenant, which has all that has arrived written together, by one local
activity. What cannot be written at once, because the database is down, is handed over to a workflow for each dead
letter, which tries without limit: a queue never waits.

A command that reaches a queue, or the workflow of a dead letter, is passed on to the run, which records it and carries
it out; if the run is gone, the command is carried out without it.
"""

from collections import deque
from collections.abc import Sequence
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from redrive.contracts import Activity, Workflow
    from redrive.dead_letters import (
        PROBLEM_LIMIT,
        AlertInput,
        Answer,
        Continue,
        Exhausted,
        LetterCommand,
        LetterId,
        LetterInput,
        LetterReport,
        LetterSignal,
        MalformedCommand,
        OutcomeReport,
        QueueInput,
        ReportBatch,
        signal_of,
    )
    from redrive.workflows.details import letter_details, queue_details, queue_row
    from redrive.workflows.inputs import NOTHING, read_addressed_command, read_command, read_input, read_message
    from redrive.workflows.records import RECORD_RETRIES, ReceivedSignals, update_message_id, work_with_record


# Longer than the activity waits for the run's answer.
PASS_ON_TIMEOUT = timedelta(seconds=30)
BATCH_TIMEOUT = timedelta(seconds=3)
HAND_OVER_TIMEOUT = timedelta(seconds=30)
HAND_OVER_RETRIES = RetryPolicy(maximum_interval=timedelta(seconds=20))
ONCE = RetryPolicy(maximum_attempts=1)
# What is handed over travels as one payload, of which Temporal takes 2 MiB.
BATCH_BYTES = 1024 * 1024
BATCH_REPORTS = 50
REPORTS_SHOWN = 10
COUNT_TIMEOUT = timedelta(seconds=5)
COUNT_RETRIES = RetryPolicy(maximum_interval=timedelta(seconds=20))
ALERT_TIMEOUT = timedelta(seconds=30)
ALERT_RETRIES = RetryPolicy(maximum_attempts=8, maximum_interval=timedelta(minutes=5))


@workflow.defn(name=Workflow.DEAD_LETTER_QUEUE)
class DeadLetterQueue:
    """Write what runs report, together with all else that has arrived. It has no end."""

    # Set by `run`, whose input may be anything; what arrives before waits.
    _tenant: str

    def __init__(self) -> None:
        self._begun = False
        self._received = ReceivedSignals()
        self._inbox: deque[tuple[LetterReport, int, str]] = deque()
        self._shown: deque[str] = deque(maxlen=REPORTS_SHOWN)

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> None:
        given = read_input(QueueInput, raw)
        self._tenant, self._begun = given.tenant, True
        while True:
            await workflow.wait_condition(lambda: bool(self._inbox) or self._is_long())
            if self._inbox:
                await self._write(await self._next_batch())
            else:
                workflow.continue_as_new(given)

    def _is_long(self) -> bool:
        return workflow.info().is_continue_as_new_suggested() and workflow.all_handlers_finished()

    @workflow.signal(dynamic=True, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def take(self, name: str, arguments: Sequence[RawValue]) -> None:
        """Take a report of a run, or a command. What cannot be read is refused and recorded."""
        message_id = self._received.next_id()
        report = read_report(name, arguments)
        if report is None:
            await self._command(name, arguments, message_id)
        elif isinstance(report, str):
            await self._refuse(name, report, message_id)
        else:
            self._inbox.append((report, len(arguments[0].payload.data), message_id))

    @workflow.update(dynamic=True, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def take_and_answer(self, name: str, arguments: Sequence[RawValue]) -> Answer:
        """Take a command, and answer when its answer is known."""
        return await self._command(name, arguments, update_message_id())

    async def _command(self, name: str, arguments: Sequence[RawValue], message_id: str) -> Answer:
        await workflow.wait_condition(lambda: self._begun)
        read = read_addressed_command(arguments, name, self._tenant)
        if isinstance(read, str):
            await self._refuse(name, read, message_id)
            return Answer(request_id="", accepted=False, message=read)
        return await _pass_on(*read)

    async def _refuse(self, name: str, problem: str, message_id: str) -> None:
        await workflow.wait_condition(lambda: self._begun)
        itself = LetterId(tenant=self._tenant, run_id=workflow.info().workflow_id, step="")
        await _record_refusal(itself, name, problem, message_id)

    async def _next_batch(self) -> list[LetterReport]:
        """Take what arrived first, as much as can be handed over together."""
        batch: list[LetterReport] = []
        size = 0
        while self._inbox and len(batch) < BATCH_REPORTS:
            report, length, message_id = self._inbox[0]
            if batch and size + length > BATCH_BYTES:
                break
            self._inbox.popleft()
            if report.letter.tenant == self._tenant:
                batch.append(report)
                size += length
            else:
                problem = f"it tells of a dead letter of {report.letter.tenant[:64]!r}, another tenant"
                await self._refuse(signal_of(report), problem, message_id)
        return batch

    async def _write(self, batch: list[LetterReport]) -> None:
        """Have reports written; hand over those that could not be."""
        if not batch:
            return
        self._show(batch)
        left = await _unwritten(batch)
        if left:
            await workflow.execute_activity(
                Activity.HAND_OVER_REPORTS,
                ReportBatch(reports=left),
                start_to_close_timeout=HAND_OVER_TIMEOUT,
                retry_policy=HAND_OVER_RETRIES,
                summary="the database did not answer at once",
            )

    def _show(self, batch: list[LetterReport]) -> None:
        self._shown.extendleft(queue_row(report) for report in batch if isinstance(report, Exhausted))
        workflow.set_current_details(queue_details(self._tenant, self._shown))


def read_report(name: str, arguments: Sequence[RawValue]) -> LetterReport | str | None:
    """Return what a run reports, or what is wrong with it; None if the signal is no report."""
    match name:
        case LetterSignal.EXHAUSTED:
            return read_message(Exhausted, arguments)
        case LetterSignal.OUTCOME:
            return read_message(OutcomeReport, arguments)
    return None


async def _unwritten(batch: list[LetterReport]) -> list[LetterReport]:
    """Have reports written at once, and return those that were not."""
    try:
        left: list[int] = await workflow.execute_local_activity(
            Activity.RECORD_REPORTS,
            ReportBatch(reports=batch),
            result_type=list[int],
            start_to_close_timeout=BATCH_TIMEOUT,
            retry_policy=ONCE,
        )
    except FailureError as error:
        if is_cancelled_exception(error):
            raise
        return batch
    return [batch[place] for place in left]


async def _pass_on(letter: LetterId, command: LetterCommand) -> Answer:
    """Pass a command on to its run; if the run is gone, have it carried out without."""
    answer: Answer = await workflow.execute_activity(
        Activity.PASS_ON_COMMAND,
        args=[letter, command.model_copy(update={"step": letter.step})],
        result_type=Answer,
        start_to_close_timeout=PASS_ON_TIMEOUT,
        retry_policy=RECORD_RETRIES,
        summary=command.verb.value,
    )
    return answer


async def _record_refusal(letter: LetterId, name: str, problem: str, message_id: str) -> None:
    refused = MalformedCommand(verb=name[:64], problem=problem, message_id=message_id)
    await work_with_record(Activity.RECORD_REFUSAL, letter, refused)


@workflow.defn(name=Workflow.DEAD_LETTER)
class DeadLetter:
    """Write what a queue could not, and pass on commands, until nothing is left to do."""

    # Set by `run`, whose input may be anything; what arrives before waits.
    _letter: LetterId

    def __init__(self) -> None:
        self._begun = False
        self._has_message = False
        self._received = ReceivedSignals()
        self._inbox: deque[tuple[LetterReport, str]] = deque()

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> None:
        self._letter = read_input(LetterInput, raw).letter
        self._begun = True
        while True:
            await workflow.wait_condition(lambda: bool(self._inbox) or self._is_over())
            if not self._inbox:
                return
            await self._write(*self._inbox.popleft())

    def _is_over(self) -> bool:
        return self._has_message and workflow.all_handlers_finished()

    # Abandoned only by a dead letter that could not read its input: any other one waits for them.
    @workflow.signal(dynamic=True, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def take(self, name: str, arguments: Sequence[RawValue]) -> None:
        """Take a report, or a command. What cannot be read is refused and recorded."""
        self._has_message = True
        message_id = self._received.next_id()
        report = read_report(name, arguments)
        if report is None:
            await self._command(name, arguments, message_id)
        elif isinstance(report, str):
            await self._refuse(name, report, message_id)
        else:
            self._inbox.append((report, message_id))

    @workflow.update(dynamic=True, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def take_and_answer(self, name: str, arguments: Sequence[RawValue]) -> Answer:
        """Take a command, and answer when its answer is known."""
        self._has_message = True
        return await self._command(name, arguments, update_message_id())

    async def _command(self, name: str, arguments: Sequence[RawValue], message_id: str) -> Answer:
        await workflow.wait_condition(lambda: self._begun)
        command = read_command(arguments, name)
        if isinstance(command, Continue):
            command = "`continue` is a command for the run, not for a dead letter"
        if isinstance(command, str):
            await self._refuse(name, command, message_id)
            return Answer(request_id="", accepted=False, message=command)
        return await _pass_on(self._letter, command)

    async def _refuse(self, name: str, problem: str, message_id: str) -> None:
        await workflow.wait_condition(lambda: self._begun)
        await _record_refusal(self._letter, name, problem, message_id)

    async def _write(self, report: LetterReport, message_id: str) -> None:
        match report:
            case _ if report.letter != self._letter:
                problem = f"it tells of {report.letter.workflow_id[:PROBLEM_LIMIT]!r}, another dead letter"
                await self._refuse(signal_of(report), problem, message_id)
            case Exhausted():
                workflow.set_current_details(letter_details(self._letter, report.pipeline, report.cycle))
                await work_with_record(Activity.RECORD_EXHAUSTED, report)
            case OutcomeReport():
                # Whatever came before it is written.
                outcome = report.outcome.model_copy(update={"after": 0})
                await work_with_record(Activity.RECORD_OUTCOME, self._letter, outcome)


@workflow.defn(name=Workflow.RAISE_ALERT)
class RaiseAlert:
    """Raise an alert: at once, or on suppressed failures that nobody has reported meanwhile.

    A workflow of its own: a dead alert channel must not delay a queue, and it outlives the dead letters it reports.
    """

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> int:
        given = read_input(AlertInput, raw)
        count = given.alert.count if given.since is None else await _suppressed(given)
        if count:
            await workflow.execute_activity(
                Activity.RAISE_ALERT,
                given.alert.model_copy(update={"count": count}),
                start_to_close_timeout=ALERT_TIMEOUT,
                retry_policy=ALERT_RETRIES,
                summary="alert",
            )
        return count


async def _suppressed(given: AlertInput) -> int:
    count: int = await workflow.execute_activity(
        Activity.TAKE_SUPPRESSED,
        given,
        result_type=int,
        start_to_close_timeout=COUNT_TIMEOUT,
        retry_policy=COUNT_RETRIES,
    )
    return count
