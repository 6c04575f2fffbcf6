"""What a foreign workflow and its dead letters tell each other: the only place that knows their protocol.

The workflow's side is local activities, which the plugin adds to the users' worker: each signals, or asks, Redrive's
own worker. Their arguments are plain JSON, so that any data converter of the users carries them, and no history holds
them. What is told is redacted here, before it leaves the users' process.
"""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

from pydantic import Field
from temporalio import activity, workflow
from temporalio.api.failure.v1 import Failure
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import RetryPolicy, WorkflowIDConflictPolicy
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError, FailureError, is_cancelled_exception

from redrive.contracts import FailedCycle, Message, Workflow
from redrive.dead_letter_queue import signal_queue
from redrive.dead_letters import (
    RECORD_BEHIND,
    SNAPSHOT_LIMIT,
    CommandRecorded,
    CommandRequest,
    Exhausted,
    LetterId,
    OperationOptions,
    Outcome,
    OutcomeReport,
)
from redrive.fairness import turn_of
from redrive.field_types import Moment
from redrive.payloads import data_converter
from redrive.plugin.code_lines import CODE_LINE_LIMIT
from redrive.plugin.operations import Operation
from redrive.redaction.redactor import Redactor
from redrive.tracing import trace_headers

REPORT: Final = "redrive.report"
OUTCOME: Final = "redrive.outcome"
RECORD: Final = "redrive.record_command"
NAMES: Final = frozenset({REPORT, OUTCOME, RECORD})

_TIMEOUT: Final = timedelta(seconds=10)
_FIRST_PAUSE: Final = timedelta(seconds=1)
_LONGEST_PAUSE: Final = timedelta(minutes=5)
_TOO_LARGE: Final = {"omitted": f"larger than {SNAPSHOT_LIMIT} bytes; the workflow has it"}
_ENCODED: Final = {"omitted": "encoded by the workflow's codec; the workflow has it"}


class FailureReport(Message):
    """What a workflow reports of a failed operation, as it is: it is redacted, then sent."""

    letter: LetterId
    workflow_type: str
    cycle: FailedCycle
    document: Any
    options: OperationOptions
    started_at: Moment
    at: Moment
    revision: int
    again: bool
    hidden: list[str] = Field(default_factory=list, description="further names whose values are in no record")


async def report(
    letter: LetterId, operation: Operation, error: BaseException, *, cycle: int, revision: int, again: bool
) -> None:
    """Report that an operation has failed for good; `again`: that the workflow still waits there."""
    info = workflow.info()
    told = FailureReport(
        letter=letter,
        workflow_type=info.workflow_type,
        cycle=operation.failed_cycle(error, cycle),
        document=_TOO_LARGE if operation.size > SNAPSHOT_LIMIT else operation.document,
        options=operation.options.model_copy(update={"event_id": operation.event_id, "code_line": operation.code_line}),
        started_at=info.start_time,
        at=workflow.now(),
        revision=revision,
        again=again,
        hidden=list(operation.hidden),
    )
    await _send(REPORT, told)


def start_outcome(letter: LetterId, outcome: Outcome) -> Coroutine[Any, Any, Any]:
    """Begin to report how a dead letter ended, and return what waits until it has arrived."""
    return _send(OUTCOME, letter, outcome)


async def record_command(request: CommandRequest) -> CommandRecorded | None:
    """Have Redrive's worker check and record a command; None if the record does not say that the workflow waits."""
    recorded = await start_command(request)
    return CommandRecorded.model_validate(recorded) if recorded else None


def start_command(request: CommandRequest) -> Coroutine[Any, Any, Any]:
    """Begin to have a command recorded, and return what waits for the answer."""
    return _send(RECORD, request)


def _send(name: str, *messages: Message) -> Coroutine[Any, Any, Any]:
    """Start the activity at once: while Temporal evicts the run, that raises, and nothing is left behind."""
    arguments = [message.model_dump(mode="json") for message in messages]
    return _until_arrived(name, arguments, _start(name, arguments))


def _start(name: str, arguments: list[Any]) -> workflow.ActivityHandle[Any]:
    return workflow.start_local_activity(
        name, args=arguments, start_to_close_timeout=_TIMEOUT, retry_policy=RetryPolicy(maximum_attempts=1)
    )


async def _until_arrived(name: str, arguments: list[Any], first: workflow.ActivityHandle[Any]) -> Any:
    """Try again after a pause that is a timer: a worker that cannot reach Redrive can still be stopped."""
    attempt, pause = first, _FIRST_PAUSE
    while True:
        try:
            return await attempt
        except FailureError as error:
            if is_cancelled_exception(error):
                raise
            workflow.logger.warning("dead_letter.not_reached: %s", name)
        await workflow.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
        attempt = _start(name, arguments)


class ReportActivities:
    """The local activities of the users' worker."""

    def __init__(self, *, task_queue: str, redactor: Callable[[Iterable[str]], Redactor]) -> None:
        self._task_queue = task_queue
        self._redactor = redactor

    @property
    def functions(self) -> Sequence[Any]:
        """The functions to register."""
        return [self.report, self.outcome, self.record_command]

    @activity.defn(name=REPORT)
    async def report(self, given: dict[str, Any]) -> None:
        """Report to the queue that an operation has failed for good: the facts, redacted."""
        told = FailureReport.model_validate(given)
        converter = activity.client().data_converter
        redactor = self._redactor(told.hidden)
        hides_texts = _hides_texts(converter)
        message = Exhausted(
            letter=told.letter,
            pipeline=told.workflow_type,
            cycle=_redacted(told.cycle, redactor, hides_texts=hides_texts),
            correlation_id=redactor.text(told.letter.run_id),
            key=None,
            started_at=told.started_at,
            at=told.at,
            revision=told.revision,
            again=told.again,
            payload=_ENCODED if converter.payload_codec else await redactor.value_aside(told.document),
            config=told.options.model_copy(
                update={
                    "is_encoded": converter.payload_codec is not None,
                    "code_line": _shown_line(told.options.code_line, redactor, hides_texts=hides_texts),
                }
            ),
            trace=trace_headers(),
        )
        await signal_queue(self._client(), self._task_queue, message)

    @activity.defn(name=OUTCOME)
    async def outcome(self, letter: dict[str, Any], outcome: dict[str, Any]) -> None:
        """Report to the queue how a dead letter ended."""
        report = OutcomeReport(letter=LetterId.model_validate(letter), outcome=Outcome.model_validate(outcome))
        await signal_queue(self._client(), self._task_queue, report)

    @activity.defn(name=RECORD)
    async def record_command(self, given: dict[str, Any]) -> dict[str, Any] | None:
        """Have Redrive's worker, which has the database, record a command and its answer."""
        request = CommandRequest.model_validate(given)
        try:
            recorded: CommandRecorded = await self._client().execute_workflow(
                Workflow.RECORD_COMMAND,
                request,
                id=f"command-{request.letter.workflow_id}-{request.revision}",
                task_queue=self._task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                result_type=CommandRecorded,
                static_summary=f"{request.command.verb} of {request.letter.module}",
                priority=turn_of(request.letter.tenant),
            )
        except WorkflowFailureError as error:
            if isinstance(error.cause, ApplicationError) and error.cause.type == RECORD_BEHIND:
                return None
            raise
        return recorded.model_dump(mode="json")

    def _client(self) -> Client:
        """Return a client for Redrive's own workflows, which read Redrive's own messages."""
        users = activity.client()
        return Client(users.service_client, namespace=users.namespace, data_converter=data_converter)


def _redacted(cycle: FailedCycle, redactor: Redactor, *, hides_texts: bool) -> FailedCycle:
    def shown(text: str) -> str:
        return "(encoded)" if hides_texts and text else redactor.text(text)

    attempts = [attempt.model_copy(update={"error": shown(attempt.error)}) for attempt in cycle.attempts]
    changes = {"message": shown(cycle.message), "stack": shown(cycle.stack), "attempts": attempts}
    return cycle.model_copy(update=changes)


def _shown_line(line: str | None, redactor: Redactor, *, hides_texts: bool) -> str | None:
    return redactor.text(line)[:CODE_LINE_LIMIT] if line and not hides_texts else None


def _hides_texts(converter: DataConverter) -> bool:
    """Tell whether the users' histories hide the texts of errors: then they do not leave in clear either."""
    if converter.payload_codec is None:
        return False
    failure = Failure()
    converter.failure_converter.to_failure(ApplicationError("text"), converter.payload_converter, failure)
    return failure.message != "text"
