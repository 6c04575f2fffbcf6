"""Everything that crosses a process: names, statuses, limits and messages. Each wire name is written here, once."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field

from redrive.categories import Category
from redrive.field_types import HeaderText, Labels, Moment
from redrive.messages import FIELD_LIMIT as FIELD_LIMIT
from redrive.messages import Attempt as Attempt
from redrive.messages import Flag as Flag
from redrive.messages import Message as Message
from redrive.messages import Name as Name
from redrive.messages import Text255 as Text255
from redrive.names import DEFAULT_TENANT as DEFAULT_TENANT
from redrive.names import KEYWORD_LIMIT as KEYWORD_LIMIT
from redrive.names import LABELS_ATTRIBUTE as LABELS_ATTRIBUTE
from redrive.names import NAME_PATTERN as NAME_PATTERN
from redrive.names import Broker as Broker
from redrive.names import RunStatus as RunStatus
from redrive.names import RunSummary as RunSummary
from redrive.names import SearchAttribute as SearchAttribute
from redrive.names import StepStatus as StepStatus
from redrive.names import Workflow as Workflow
from redrive.policy import RetryPolicy

MIB: Final = 1024 * 1024
PAYLOAD_LIMIT: Final = MIB
RESULT_LIMIT: Final = MIB
# Payload and outputs travel together in one Temporal message, which may hold 2 MiB.
DOCUMENT_LIMIT: Final = 2 * MIB - 128 * 1024
STEP_LIMIT: Final = 200
DEPTH_LIMIT: Final = 100
# These bound what a document costs to parse and to walk. Constants, because workflows check messages against them: a
# limit that changes with a setting would change the meaning of a stored history.
ELEMENT_LIMIT: Final = 50_000
NAME_LIMIT: Final = 1024
DIGIT_LIMIT: Final = 4300
# A message has fields of its own besides its document.
MESSAGE_ELEMENT_LIMIT: Final = ELEMENT_LIMIT + 10_000
# A run that replaces one that is gone is given the outputs of earlier steps with its payload.
INPUT_ELEMENT_LIMIT: Final = 4 * MESSAGE_ELEMENT_LIMIT
# In the details of an error that the plugin has classified.
CATEGORY_DETAIL: Final = "redrive_category"
ERROR_TEXT_LIMIT: Final = 8 * 1024
ATTEMPT_TEXT_LIMIT: Final = 1024
ATTEMPTS_KEPT: Final = 50
# Above this, a fast step would take too large a part of its workflow task, which times out after 10 s.
FAST_TIMEOUT: Final = timedelta(seconds=5)
# In the metadata of a fast attempt's result: the worker takes the run's end by this function of its own, and writes it
# when Temporal has it. A result without it is of a worker whose runs report their end by a local activity.
KEEPS_END: Final = "redrive_keeps_end"
# How long an attempt may take under a debugger.
DEBUG_TIMEOUT: Final = timedelta(days=1)
ALERT_WINDOW: Final = timedelta(minutes=10)
# Temporal's tables in PostgreSQL hold ids of 255 characters; a dead letter's is its run's, its step's (64) and 13 more.
RUN_ID_LIMIT: Final = 255 - 64 - 13

TASK_QUEUE: Final = "redrive"

SCHEDULED_PREFIX: Final = "scheduled-"


def scheduled_run_id(workflow_id: str) -> str:
    """Return the id of the run that a schedule's workflow starts: Temporal has put the time into the workflow's id."""
    return workflow_id.removeprefix(SCHEDULED_PREFIX)


class Activity(StrEnum):
    """Names of activity types."""

    RUN_STEP = "run_step"
    DESCRIBE_MODULES = "describe_modules"
    RESOLVE_PIPELINE = "resolve_pipeline"
    PROBE_SERVICES = "probe_services"
    REPORT_EXHAUSTED = "report_exhausted"
    REPORT_OUTCOME = "report_outcome"
    RECORD_REPORTS = "record_reports"
    HAND_OVER_REPORTS = "hand_over_reports"
    RECORD_EXHAUSTED = "record_exhausted"
    RECORD_COMMAND = "record_command"
    RECORD_END = "record_end"
    PASS_ON_COMMAND = "pass_on_command"  # noqa: S105 - no password
    RECORD_OUTCOME = "record_outcome"
    RECORD_REFUSAL = "record_refusal"
    RECORD_CONTINUE = "record_continue"
    RAISE_ALERT = "raise_alert"
    SWEEP_RETRIES = "sweep_retries"
    TAKE_SUPPRESSED = "take_suppressed"
    RECORD_KEY = "record_key"
    EXPIRE_KEYS = "expire_keys"
    PLAN_BULK = "plan_bulk"
    APPROVE_BULK = "approve_bulk"
    OPEN_BULK = "open_bulk"
    ADVANCE_BULK = "advance_bulk"
    CONTROL_BULK = "control_bulk"
    FINISH_BULK = "finish_bulk"
    DESCRIBE_BULK = "describe_bulk"
    LIST_BULK_ITEMS = "list_bulk_items"
    PURGE = "purge"
    ANCHOR_AUDIT = "anchor_audit"


class Query(StrEnum):
    """Names of queries."""

    STATUS = "status"
    DOCUMENT = "document"
    ANSWER = "answer"


class Update(StrEnum):
    """Names of updates that are no commands."""

    ANSWER = "answer"


class Effect(StrEnum):
    """What a module does to the outside, and so what running it again means."""

    NONE = "none"
    KEYED = "keyed"
    UNSAFE = "unsafe"


class AttemptError(Message):
    """What a failed attempt reports to the run, in the details of its error: itself, and the attempts before it."""

    attempts: list[Attempt]
    error_type: str
    stack: str = ""
    build_id: str = Field(default="", description="build id of the worker that made the last attempt")


class FailedCycle(AttemptError):
    """How a step was exhausted: every attempt since it was started or replayed, and the last error in full."""

    step: str
    cycle: int
    category: Category
    message: str


class StepSnapshot(Message):
    """A step as it was when its run started."""

    name: Name
    policy: RetryPolicy
    reads: list[str] | None = Field(default=None, description="the document's fields that the step reads; none: all")
    dedupe: bool = Field(default=False, description="its stored result answers a second execution")
    fast: Flag = Field(default=False, description="its first attempt runs inside the workflow task")


class StepState(Message):
    """A step's status and outcome."""

    name: str
    status: StepStatus = StepStatus.PENDING
    cycle: int = 0
    attempt: int = Field(default=0, description="attempts in this cycle so far")
    max_attempts: int = 0
    attempts: list[Attempt] = Field(default_factory=list, description="the failed ones of this cycle")
    next_retry_at: datetime | None = None
    started_at: datetime | None = Field(default=None, description="when this cycle began")
    finished_at: datetime | None = Field(default=None, description="when this cycle ended: done, dead or canceled")
    output_size: int | None = None
    failure: FailedCycle | None = None


class OpenLetter(Message):
    """What a run knows of an open dead letter."""

    revision: int = Field(description="the number of the run's last report about it")
    command: str | None = Field(default=None, description="the request id of the command under way")


class RunState(Message):
    """A run's state: carried over by continue-as-new."""

    steps: list[StepState]
    outputs: dict[str, Any] = Field(default_factory=dict)
    patches: dict[str, list[dict[str, Any]]] = Field(
        default_factory=dict, description="edits of steps' inputs, oldest first"
    )
    policies: dict[str, RetryPolicy] = Field(default_factory=dict, description="policies for the next cycle of a step")
    versions: dict[str, int] = Field(
        default_factory=dict, description="how often a step's input was changed by edits: a part of its keys"
    )
    letters: dict[str, OpenLetter] = Field(default_factory=dict, description="open dead letters, by step")
    revision: int = Field(default=0, description="the number of the run's last report: a row takes only a newer one")
    stop_after: str | None = Field(default=None, description="the step that a STEP_ONLY replay runs")


class KeyClaim(Message):
    """What a run keeps of its idempotency key, for the key's row."""

    generation: int = 0
    request_hash: str = Field(default="", description="fingerprint of pipeline and payload; empty: not known")
    expires_at: Moment


class ClaimRequest(KeyClaim):
    """A caller's request for a key, with the run that it would start."""

    tenant: str
    key: str
    run_id: str
    pipeline: str


class RunInput(Message):
    """The run input. A pipeline and a payload are enough: the rest has defaults."""

    pipeline: Name
    payload: dict[str, Any] = Field(default_factory=dict)
    tenant: Name = DEFAULT_TENANT
    steps: Annotated[list[StepSnapshot], Field(min_length=1, max_length=STEP_LIMIT)] | None = None
    key: HeaderText | None = Field(default=None, description="idempotency key")
    generation: int = Field(default=0, ge=0, description="how often the key was given a run before this one")
    request_hash: str | None = Field(default=None, description="fingerprint of pipeline and payload")
    key_expires_at: Moment | None = None
    correlation_id: HeaderText | None = None
    user_id: HeaderText | None = None
    event_id: Text255 | None = Field(default=None, description="the stored event whose projectors the steps are")
    labels: Labels = Field(default_factory=dict, exclude_if=lambda value: not value)
    state: RunState | None = None

    @property
    def claim(self) -> KeyClaim | None:
        """What the row of the key needs; None for a run without a key."""
        if self.key is None or self.key_expires_at is None:
            return None
        return KeyClaim(
            generation=self.generation, request_hash=self.request_hash or "", expires_at=self.key_expires_at
        )


class RunView(Message):
    """A run as an operator sees it."""

    run_id: str
    tenant: str
    pipeline: str
    status: RunStatus
    correlation_id: str | None = None
    key: str | None = None
    labels: dict[str, str] = Field(default={})
    steps: list[StepState] = Field(default=[])
    error: str | None = None
    started_at: datetime | None = None
    closed_at: datetime | None = None
    note: str | None = Field(default=None, description="what could not be seen, and why")


class RunResult(Message):
    """What a finished run returns."""

    run_id: str
    status: RunStatus
    output: Any = Field(default=None, description="the last step's output")
    steps: list[StepState]


class StartedRun(Message):
    """The answer to a start: the same key gives the same run, and says so.

    A key whose run has ended answers with its outcome: `response`, or where to read one that is too large for this
    answer, or `error`.
    """

    run_id: str
    is_cached: bool
    status: RunStatus
    response: Any = Field(default=None, description="the run's output, once it succeeded")
    response_at: str | None = Field(default=None, description="where to read an output that does not stand here")
    error: str | None = Field(default=None, description="why the run failed, once it did")


class KeyStatus(StrEnum):
    """The status of an idempotency key's run."""

    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"


class KeySweep(Message):
    """What a sweep over runs and keys did."""

    runs: int = Field(default=0, description="runs that had ended without a record in the database")
    settled: int = Field(description="keys whose run had ended without a record in the database")
    deleted: int = Field(description="keys and stored results whose time was up")


class PurgeReport(Message):
    """What a purge did."""

    deleted: dict[str, int] = Field(description="how many rows of each kind")


class AnchorMark(Message):
    """Up to when the heads of the audit log are recorded elsewhere."""

    since: datetime = Field(description="the next time, logs that have grown since then are looked at")
    heads: int = Field(description="how many heads were noted")


class RunEnd(Message):
    """What the row of a run that succeeded needs."""

    run_id: str
    tenant: str
    pipeline: str
    correlation_id: str
    started_at: datetime
    key: str | None
    claim: KeyClaim | None = Field(default=None, description="given when the run is the one of its key")
    labels: dict[str, str] = Field(default_factory=dict, exclude_if=lambda value: not value)
    output: Any = Field(default=None, description="what the key answers with, if the run has one")
    when_closed: Flag = Field(
        default=False, description="written once Temporal has the end: until then, no history has the last steps"
    )
    revision: int = Field(description="the run's number of this report: a row takes only a newer one")


class StepInput(Message):
    """The step input: what a worker needs for an attempt."""

    run_id: str
    tenant: str
    pipeline: str
    step: StepSnapshot
    cycle: int = 1
    version: int = Field(default=0, description="how often its input was changed by edits: a part of its keys")
    document: dict[str, Any]
    prior: list[Attempt] = Field(default_factory=list, description="attempts of this cycle made before this activity")
    spent: timedelta = Field(default=timedelta(0), description="of the deadline, before this activity")
    failed: FailedCycle | None = Field(
        default=None,
        exclude_if=lambda value: value is None,
        description="how the first attempt failed, made inside the workflow task; this activity's first one reports it",
    )
    maybe_again: Flag = Field(
        default=False, description="of a fast attempt: whether its workflow task may have been tried before"
    )
    correlation_id: str
    user_id: str | None = None
    event_id: str | None = None
    labels: dict[str, str] = Field(default_factory=dict, exclude_if=lambda value: not value)
    execution: str | None = Field(
        default=None,
        exclude_if=lambda value: value is None,
        description="Temporal's run id of a workflow that is no pipeline run: its own id may be used again",
    )
    call: int = Field(
        default=0, exclude_if=lambda value: not value, description="which call of the module there, from 1"
    )

    @property
    def scope(self) -> str:
        """What keys and counters of the run begin with."""
        return self.execution or self.run_id

    @property
    def place(self) -> str:
        """The step's name in its run: a workflow that is no pipeline run may call a module many times."""
        return f"{self.step.name}.{self.call}" if self.execution else self.step.name


class StepResult(Message):
    """What a successful attempt returns."""

    output: Any
    size: int
    attempt: int
    attempts: list[Attempt] = Field(default_factory=list, description="the failed attempts before it")


class ResolveRequest(Message):
    """Ask a worker for a pipeline's steps and whether a payload fits it."""

    pipeline: str
    payload: dict[str, Any]


class Resolution(Message):
    """A pipeline's steps, or why the request is refused."""

    steps: list[StepSnapshot] = Field(default=[])
    problem: str | None = None
    code: str | None = None


class ModuleView(Message):
    """A module as a worker knows it."""

    name: str
    summary: str
    policy: RetryPolicy
    dedupe: bool = False
    effect: Effect = Effect.KEYED
    fast: Flag = Field(default=False, description="its first attempt runs inside the workflow task")
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]


class PipelineView(Message):
    """A pipeline as a worker knows it."""

    name: str
    steps: list[str]
    fast: list[str] = Field(
        default_factory=list, exclude_if=lambda value: not value, description="the steps that are fast here"
    )


class Catalog(Message):
    """The modules and pipelines that a worker knows."""

    modules: list[ModuleView]
    pipelines: list[PipelineView]
    build_id: str


class InputCheck(Message):
    """What a process without a module's code can check of its input."""

    reads: list[str] | None = Field(description="the document's fields that the module reads; none: all")
    required: list[list[str]] = Field(description="of each required field, the names that may carry it")
    rules: dict[str, Any] = Field(description="pydantic's rules of the input model, those that are not code")
    is_complete: bool = Field(description="whether these are all rules of the model")


class PublishedCatalog(Message):
    """A worker's catalog, as it is stored for processes without its code."""

    catalog: Catalog
    inputs: dict[str, InputCheck] = Field(description="by module")
    outputs: dict[str, dict[str, Any]] = Field(
        default={}, description="by module, pydantic's rules of the output model, those that are not code"
    )


class SweepInput(Message):
    """Which tenant's retries a sweep sends, and how long one of its activities runs."""

    tenant: Name
    shift: timedelta = Field(default=timedelta(minutes=10), gt=timedelta(0), le=timedelta(days=1))


class ActivityVerb(StrEnum):
    """What can be done with an activity that fails."""

    PAUSE = "pause"
    UNPAUSE = "unpause"
    RETRY = "retry"


class ActivityName(Message):
    """Which activity: that of one run of a workflow."""

    workflow_id: str
    execution: str = Field(default="", description="Temporal's run id; none: the run that is open")
    activity_id: str


class PendingActivity(ActivityName):
    """An activity whose last attempt failed, or that is paused."""

    workflow_type: str
    tenant: str
    activity: str
    attempt: int = Field(description="the next one, or the one under way")
    max_attempts: int = Field(description="0: no limit")
    is_paused: bool
    error_type: str
    error: str = Field(description="the beginning of it, redacted")
    next_at: datetime | None = Field(default=None, description="when the next attempt is due")
