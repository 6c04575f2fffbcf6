"""Dead letters: the messages about them, and the decisions on commands. Pure.

A command is what an operator tells a dead letter to do: replay, resolve, discard or restart; or a run: continue. It
reaches the dead letter's workflow as a signal or as an update of the same shape.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter

from redrive.categories import Category
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
from redrive.moments import Moment
from redrive.policy import RetryPolicy

REASON_LIMIT: Final = 4096
MAX_REPLAYS: Final = 10
SNAPSHOT_LIMIT: Final = 64 * 1024
LETTERS_LIMIT: Final = 1000
ANSWERS_KEPT: Final = 100
PROBLEM_LIMIT: Final = 1024
COMMAND_LIMIT: Final = PAYLOAD_LIMIT + 64 * 1024

Reason = Annotated[str, StringConstraints(min_length=1, max_length=REASON_LIMIT)]


class LetterStatus(StrEnum):
    """A dead letter's status."""

    PENDING = "pending"
    REPLAYING = "replaying"
    REPLAYED = "replayed"
    RESOLVED = "resolved"
    DISCARDED = "discarded"

    @property
    def closed(self) -> bool:
        """Tell whether it takes no more commands."""
        return self not in {LetterStatus.PENDING, LetterStatus.REPLAYING}


class Mode(StrEnum):
    """How far a replay goes."""

    STEP_ONLY = "STEP_ONLY"
    FROM_STEP = "FROM_STEP"


class LetterSignal(StrEnum):
    """Signals of the dead letter's workflow besides the commands. `exhausted` and `outcome` come from its run."""

    EXHAUSTED = "exhausted"
    OUTCOME = "outcome"


class RunSignal(StrEnum):
    """Signals of a run that has dead letters: an accepted command, and a request to report where it is parked."""

    COMMAND = "command"
    REPORT = "report"


class Verb(StrEnum):
    """Commands; also the names of the signals and updates that carry them."""

    REPLAY = "replay"
    RESOLVE = "resolve"
    DISCARD = "discard"
    RESTART = "restart"
    CONTINUE = "continue"


class _Command(Message):
    request_id: Text255 = Field(description="the same id again is the same command, and gets the first answer")
    requested_by: Text255
    reason: Reason


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
    output: dict[str, Any]


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
COMMANDS: Final[TypeAdapter[Command]] = TypeAdapter(Annotated[Command, Field(discriminator="verb")])


class RunCommand(Message):
    """An accepted command as its run gets it. It may arrive twice: it is valid for this cycle of this step only."""

    step: str
    cycle: int
    command: LetterCommand = Field(discriminator="verb")
    proof: str = Field(default="", description="made by the transaction that accepted it; the run has it checked")


class Answer(Message):
    """The outcome of a command."""

    request_id: str
    accepted: bool
    message: str
    status: LetterStatus | None = None
    orphaned: bool = Field(default=False, description="whether it is refused because the run is gone")


class LetterId(Message):
    """Which dead letter: each (run, step) has exactly one."""

    tenant: str
    run_id: str
    step: str

    @property
    def workflow_id(self) -> str:
        """The id of the dead letter's workflow."""
        return f"dead-letter-{self.run_id}-{self.step}"


class LetterSelection(Message):
    """Which dead letters; by default all. `fingerprint` selects a group of similar failures."""

    model_config = ConfigDict(frozen=True)

    pipeline: str | None = None
    module: str | None = None
    step: str | None = None
    category: Category | None = None
    fingerprint: str | None = None
    since: Moment | None = Field(default=None, description="that failed last at this moment or later")
    until: Moment | None = Field(default=None, description="that failed last before this moment")
    text: str | None = Field(
        default=None,
        description="a dead letter's id, run id, correlation id or key; when none has it, a part of the message, the "
        "run id, the correlation id or the key",
    )
    letters: list[Text255] | None = Field(default=None, max_length=LETTERS_LIMIT, description="these, by their ids")


class LetterFilter(LetterSelection):
    """Which dead letters, of one tenant or of all, in whatever status or in one."""

    tenant: str | None = None
    status: LetterStatus | None = None

    def within(self, tenant: str | None) -> "LetterFilter":
        """Return the filter alone, without what an address or command adds to it, for this tenant or all."""
        return LetterFilter(**{name: getattr(self, name) for name in LetterFilter.model_fields} | {"tenant": tenant})


class ReceivedCommand(Message):
    """What a run checks of a command that it got: whether the record accepted it."""

    letter: LetterId
    verb: Verb
    request_id: str
    requested_by: str
    proof: str


class _Exhaustion(Message):
    letter: LetterId
    pipeline: str
    cycle: FailedCycle
    correlation_id: str
    key: str | None
    claim: KeyClaim | None = None
    started_at: Moment = Field(description="when the run began")
    at: Moment
    again: bool = Field(default=False, description="told before; the run is parked there still and has no command")


class Exhausted(_Exhaustion):
    """A step was exhausted: the facts of the record, redacted."""

    payload: Any
    config: RetryPolicy


class ExhaustedReport(_Exhaustion):
    """What a run reports when a step is exhausted. `document` is the original input: it is redacted, then dropped."""

    snapshot: StepSnapshot
    document: dict[str, Any]

    def redacted(self, payload: Any, text: Callable[[str], str]) -> Exhausted:
        """Return the facts of the record, with this payload, and with texts that were given from outside redacted."""
        facts = dict(self) | {
            "correlation_id": text(self.correlation_id),
            "key": text(self.key) if self.key is not None else None,
            "payload": payload,
            "config": self.snapshot.policy,
        }
        return Exhausted(**{name: facts[name] for name in Exhausted.model_fields})


class Ending(StrEnum):
    """How a replay ended for a dead letter."""

    SUCCEEDED = "succeeded"
    BLOCKED = "blocked"
    CANCELED = "canceled"


class Outcome(Message):
    """What a run reports to a dead letter after it continued. Exhausted again is `Exhausted`."""

    ending: Ending
    request_id: str | None = None
    blocked_by: str | None = Field(default=None, description="the earlier step that is dead now")
    run_status: RunStatus | None = Field(default=None, description="what the run becomes with it, if that is news")


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
    """The state of a dead letter's workflow; carried over by continue-as-new."""

    letter: LetterId
    status: LetterStatus = LetterStatus.PENDING
    pipeline: str = ""
    cycle: FailedCycle | None = None
    cycles: int = 0
    replays: int = 0
    blocked_by: str | None = None
    orphaned: bool = False
    command: LetterCommand | None = Field(
        default=None, discriminator="verb", description="the command that was handed to the run, until its outcome"
    )
    exists: bool = True
    answers: dict[str, Answer] = Field(default_factory=dict)


class LetterInput(Message):
    """What starts a dead letter's workflow."""

    letter: LetterId
    state: LetterState | None = None


class MalformedCommand(Message):
    """A command, or another message, that could not be read."""

    verb: str = Field(description="the name of the signal or update")
    problem: str


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


class FollowUp(Message):
    """Report, at the end of an alert's window, how many failures it suppressed."""

    alert: Alert = Field(description="one of those that were suppressed; its count is not known yet")
    since: Moment = Field(description="when the alert was raised that suppresses them")

    @property
    def workflow_id(self) -> str:
        """One for each alert that suppresses others."""
        return f"alert-{self.alert.letter.tenant}-{self.alert.fingerprint}-{self.since:%Y%m%dT%H%M%S.%f}"


class LetterRecorded(Message):
    """What the record says after a cycle was written, and the alert that is due."""

    state: LetterState
    alert: Alert | None = None


class CommandRecorded(Message):
    """The answer to a command, and whether it is carried out now."""

    answer: Answer
    under_way: bool = False
    orphaned: bool = Field(default=False, description="whether the run is gone")


class CommandRequest(Message):
    """A command, and the state of its dead letter."""

    letter: LetterId
    command: LetterCommand = Field(discriminator="verb")
    refusal: str | None
    status: LetterStatus
    cycle: int = Field(description="the cycle that the record tells of")


def refusal(state: LetterState, command: LetterCommand, max_replays: int = MAX_REPLAYS) -> str | None:
    """Say why a dead letter cannot take a command now, or None. What only the run knows is checked with the run."""
    if not state.exists:
        return f"step {state.letter.step!r} of run {state.letter.run_id!r} has no dead letter"
    if state.status.closed:
        return f"the dead letter is {state.status}: there is nothing left to {command.verb}"
    if state.status is LetterStatus.REPLAYING:
        by = f" (command {state.command.request_id!r} of {state.command.requested_by!r})" if state.command else ""
        return f"a replay is under way{by}: wait for its outcome"
    # A discard is left to the check with the run: a run that is gone blocks nothing.
    if state.blocked_by and not isinstance(command, Discard):
        return f"the earlier step {state.blocked_by!r} of the run is dead: send a command to its dead letter first"
    return _replay_refusal(state, command, max_replays) if isinstance(command, Replay) else None


def _replay_refusal(state: LetterState, command: Replay, max_replays: int) -> str | None:
    if state.replays >= max_replays:
        return f"replayed {state.replays} times already, the limit: resolve or discard it"
    if command.from_step not in {None, state.letter.step} and command.mode is Mode.STEP_ONLY:
        return f"from_step {command.from_step!r}: a STEP_ONLY replay runs the failed step {state.letter.step!r} alone"
    return None


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
        case Ending.CANCELED:
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
