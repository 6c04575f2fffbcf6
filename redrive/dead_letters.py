"""Dead letters: the messages about them, and the decisions on commands. Pure.

A command is what an operator tells a dead letter to do: replay, resolve, discard or restart; or a run: continue. It
reaches the run, or a dead letter queue, which passes it on, as a signal or as an update of the same shape.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter

from redrive.contracts import (
    PAYLOAD_LIMIT,
    FailedCycle,
    KeyClaim,
    Message,
    Name,
    RunInput,
    RunState,
    RunStatus,
    StepSnapshot,
    StepState,
    Text255,
)
from redrive.dead_letter_records import LETTERS_LIMIT as LETTERS_LIMIT
from redrive.dead_letter_records import ForeignPlace as ForeignPlace
from redrive.dead_letter_records import LetterFilter as LetterFilter
from redrive.dead_letter_records import LetterId as LetterId
from redrive.dead_letter_records import LetterSelection as LetterSelection
from redrive.dead_letter_records import LetterStatus as LetterStatus
from redrive.dead_letter_records import Mode as Mode
from redrive.dead_letter_records import OperationKind as OperationKind
from redrive.dead_letter_records import OperationOptions as OperationOptions
from redrive.dead_letter_records import Verb as Verb
from redrive.field_types import Moment
from redrive.policy import RetryPolicy

REASON_LIMIT: Final = 4096
MAX_REPLAYS: Final = 10
SNAPSHOT_LIMIT: Final = 64 * 1024
ANSWERS_KEPT: Final = 100
PROBLEM_LIMIT: Final = 1024
COMMAND_LIMIT: Final = PAYLOAD_LIMIT + 64 * 1024
# The type of the error that says: the record does not say that the run is parked where it is.
RECORD_BEHIND: Final = "record_behind"

Reason = Annotated[str, StringConstraints(min_length=1, max_length=REASON_LIMIT)]


class LetterSignal(StrEnum):
    """Signals of a dead letter queue besides the commands: what runs report, which is to be recorded."""

    EXHAUSTED = "exhausted"
    OUTCOME = "outcome"


class RunSignal(StrEnum):
    """Signals of a run besides the commands: a request to report where it is parked."""

    REPORT = "report"


class ForeignSignal(StrEnum):
    """Signals of a foreign workflow: one that is no pipeline run and has dead letters by the plugin."""

    COMMAND = "redrive.command"


class ForeignQuery(StrEnum):
    """Queries of a foreign workflow: the steps that it is parked at."""

    PARKED = "redrive.parked"


class _Command(Message):
    request_id: Text255 = Field(description="the same id again is the same command, and gets the first answer")
    requested_by: Text255
    reason: Reason
    step: Text255 | None = Field(default=None, description="the dead step; none: the one that the run is parked at")


class ReplayOptions(Message):
    """How a step is replayed."""

    mode: Mode = Field(default=Mode.FROM_STEP, description="STEP_ONLY: the dead step alone; then the run waits")
    from_step: Name | None = Field(default=None, description="at or before the dead one; none: the dead one")
    input_patch: dict[str, Any] | None = Field(default=None, description="JSON Merge Patch on the step's input")
    policy: dict[str, Any] | None = Field(default=None, description="fields of the retry policy, for this cycle")

    @property
    def options(self) -> dict[str, Any]:
        """These options alone, of whatever message has them."""
        return {name: getattr(self, name) for name in ReplayOptions.model_fields}


class Replay(ReplayOptions, _Command):
    """Run a parked step again."""

    verb: Literal[Verb.REPLAY] = Verb.REPLAY


class Resolve(_Command):
    """Let the run continue as if the step had returned this output."""

    verb: Literal[Verb.RESOLVE] = Verb.RESOLVE
    output: Any = Field(description="what the step returns: for a module, an object that fits its output model")


class Discard(_Command):
    """Discard the dead letter: the run ends FAILED."""

    verb: Literal[Verb.DISCARD] = Verb.DISCARD


class Restart(_Command):
    """Start a new run from the failed step, if the dead letter's run is gone."""

    verb: Literal[Verb.RESTART] = Verb.RESTART


class Continue(_Command):
    """Let a run that stopped after a STEP_ONLY replay continue with its later steps."""

    verb: Literal[Verb.CONTINUE] = Verb.CONTINUE


LetterCommand = Replay | Resolve | Discard | Restart
Command = LetterCommand | Continue
COMMANDS: Final[TypeAdapter[Command]] = TypeAdapter(
    Annotated[Command, Field(discriminator="verb")], config=ConfigDict(defer_build=True)
)


class Answer(Message):
    """The outcome of a command."""

    request_id: str
    accepted: bool
    message: str
    status: LetterStatus | None = None
    orphaned: bool = Field(default=False, description="whether it is refused because the run is gone")


class _Exhaustion(Message):
    letter: LetterId
    pipeline: str
    cycle: FailedCycle
    correlation_id: str
    key: str | None
    claim: KeyClaim | None = None
    labels: dict[str, str] = Field(default_factory=dict, exclude_if=lambda value: not value)
    started_at: Moment = Field(description="when the run began")
    at: Moment
    revision: int = Field(description="the run's number of this report: a record takes only a newer one")
    again: bool = Field(default=False, description="told before; the run is parked there still and has no command")


class Exhausted(_Exhaustion):
    """A step was exhausted: the facts of the record, redacted."""

    payload: Any
    config: RetryPolicy | OperationOptions
    trace: dict[Text255, Text255] = Field(
        default_factory=dict, max_length=4, exclude_if=lambda value: not value, description="the headers of its trace"
    )


class ExhaustedReport(_Exhaustion):
    """What a run reports when a step is exhausted. `document` is the original input: it is redacted, then dropped."""

    snapshot: StepSnapshot
    document: dict[str, Any]

    def redacted(self, payload: Any, text: Callable[[str], str], trace: dict[str, str]) -> Exhausted:
        """Return the facts of the record, with this payload, and with texts that were given from outside redacted."""
        facts = dict(self) | {
            "correlation_id": text(self.correlation_id),
            "key": text(self.key) if self.key is not None else None,
            "labels": {name: text(value) for name, value in self.labels.items()},
            "payload": payload,
            "config": self.snapshot.policy,
            "trace": trace,
        }
        return Exhausted(**{name: facts[name] for name in Exhausted.model_fields})


class Ending(StrEnum):
    """How a replay ended for a dead letter."""

    SUCCEEDED = "succeeded"
    BLOCKED = "blocked"
    CANCELED = "canceled"
    DISCARDED = "discarded"


class Outcome(Message):
    """What a run reports about a dead letter after it continued. Exhausted again is `Exhausted`."""

    ending: Ending
    revision: int | None = Field(default=None, description="the run's number of this report; none: a repair")
    after: int = Field(default=0, description="the number of the report before it, which the record must have")
    request_id: str | None = None
    blocked_by: str | None = Field(default=None, description="the earlier step that is dead now")
    run_status: RunStatus | None = Field(default=None, description="what the run becomes with it, if that is news")


class OutcomeReport(Message):
    """An outcome that the run could not record itself."""

    letter: LetterId
    outcome: Outcome


LetterReport = Exhausted | OutcomeReport


def signal_of(report: LetterReport) -> LetterSignal:
    """Return the name of the signal that carries a report."""
    return LetterSignal.EXHAUSTED if isinstance(report, Exhausted) else LetterSignal.OUTCOME


class ReportBatch(Message):
    """Reports that a dead letter queue has recorded together, in their sequence."""

    reports: list[LetterReport]


class QueueInput(Message):
    """What starts a dead letter queue."""

    tenant: Name


class RunDocument(Message):
    """What a command is checked against: a run's original input and state."""

    run: RunInput
    parked_at: str | None

    @property
    def steps(self) -> list[StepSnapshot]:
        """The run's steps."""
        return self.run.steps or []

    @property
    def document(self) -> dict[str, Any]:
        """The payload, and the outputs of finished steps under their names."""
        return self.run.payload | (self.run.state.outputs if self.run.state else {})


class LetterState(Message):
    """What the record of a dead letter says."""

    letter: LetterId
    status: LetterStatus
    cycle: int = 0
    replays: int = 0
    blocked_by: str | None = None


class LetterInput(Message):
    """What starts the workflow of one dead letter."""

    letter: LetterId


class MalformedCommand(Message):
    """A command, or another message, that could not be read."""

    verb: str = Field(description="the name of the signal or update")
    problem: str
    message_id: str | None = Field(
        default=None, description="which message of its workflow it was: the same when a workflow task is repeated"
    )


class Alert(Message):
    """An alert on dead letters: one for all similar failures within a window."""

    letter: LetterId
    pipeline: str
    fingerprint: str
    category: str
    error_type: str
    message: str
    attempts: int
    count: int = Field(description="how many dead letters looked alike since the last alert, this one included")


class AlertInput(Message):
    """An alert to raise: now, or at the end of another one's window, with the number of failures that it suppressed."""

    alert: Alert
    since: Moment | None = Field(
        default=None, description="when the alert was raised that suppresses this one, whose count is not known yet"
    )


class CommandRequest(Message):
    """A command to a run: what the run says against it, and what it is checked against."""

    letter: LetterId
    command: LetterCommand = Field(discriminator="verb")
    cycle: int = Field(description="the cycle that the run is parked in")
    revision: int = Field(description="the run's number of this report: a record takes only a newer one")
    refusal: str | None = None
    steps: list[str] = Field(description="the run's steps")
    run: RunDocument | None = Field(default=None, description="given if the command needs it: see `needs_document`")


class CommandRecorded(Message):
    """The answer to a command, and what the run needs to carry it out."""

    answer: Answer
    command: LetterCommand | None = Field(
        default=None, discriminator="verb", description="as it is carried out now; none: it is not"
    )
    reads: dict[str, list[str] | None] = Field(default_factory=dict, description="what each step's module reads today")
    listed_later: bool = Field(
        default=False, description="Temporal lists the run as running when it ends, or after a while; not at once"
    )


class Reply(Message):
    """What a run says about a command: its answer, once there is one."""

    answer: Answer | None
    is_open: bool = Field(description="whether the run may still answer")


def needs_document(command: LetterCommand) -> bool:
    """Tell whether a command must match the run's input or a module's output."""
    match command:
        case Replay():
            return command.input_patch is not None
        case Resolve():
            return True
        case Discard() | Restart():
            return False


def refusal(state: LetterState, command: LetterCommand, max_replays: int = MAX_REPLAYS) -> str | None:
    """Say why the record of a dead letter conflicts with a command, or None. The run has the last word."""
    if state.status.closed:
        return closed_refusal(state.letter, state.status, command)
    if state.status is LetterStatus.REPLAYING:
        return "a replay is under way: wait for its outcome"
    # A discard is left to the run: if it is gone, it blocks nothing.
    if state.blocked_by and not isinstance(command, Discard):
        return f"the earlier step {state.blocked_by!r} of the run is dead: send a command to its dead letter first"
    if isinstance(command, Replay) and state.replays >= max_replays:
        return f"replayed {state.replays} times already, the limit: resolve or discard it"
    return None


def closed_refusal(letter: LetterId, status: LetterStatus | None, command: LetterCommand) -> str:
    """Say why a dead letter that is closed, or was never there, takes no command."""
    if status is None:
        return f"step {letter.step!r} of run {letter.run_id!r} has no dead letter"
    return f"the dead letter is {status}: there is nothing left to {command.verb}"


def status_after(command: LetterCommand) -> LetterStatus:
    """Return the status after an accepted command."""
    match command:
        case Replay():
            return LetterStatus.REPLAYING
        case Resolve() | Restart():
            return LetterStatus.RESOLVED
        case Discard():
            return LetterStatus.DISCARDED


def run_status_after(command: LetterCommand) -> RunStatus:
    """Return the run's status after an accepted command. A success is reported by the run itself."""
    match command:
        case Replay() | Resolve():
            return RunStatus.RUNNING
        case Discard() | Restart():
            # A restarted run is another run: this one ends.
            return RunStatus.FAILED


def status_after_outcome(outcome: Outcome) -> LetterStatus:
    """Return the status after an outcome."""
    match outcome.ending:
        case Ending.SUCCEEDED:
            return LetterStatus.REPLAYED
        case Ending.BLOCKED:
            return LetterStatus.PENDING
        case Ending.CANCELED | Ending.DISCARDED:
            return LetterStatus.DISCARDED


def restarted(run: RunInput, letter: LetterId) -> RunInput:
    """Return the input of the run that replaces one that is gone, from the dead step on."""
    state = run.state or RunState(steps=[])
    names = [step.name for step in state.steps]
    first = names.index(letter.step)
    steps = [
        step if position < first else StepState(name=step.name, max_attempts=step.max_attempts)
        for position, step in enumerate(state.steps)
    ]
    outputs = {name: output for name, output in state.outputs.items() if name in names[:first]}
    patches = {name: patch for name, patch in state.patches.items() if name not in names[:first]}
    return run.model_copy(
        update={"state": RunState(steps=steps, outputs=outputs, patches=patches), "generation": run.generation + 1}
    )
