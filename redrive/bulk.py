"""Bulk operations: one command for many dead letters. The messages about them, and the decisions. Pure.

The membership is fixed when a bulk operation starts; each item is then one command to one dead letter.
"""

import hashlib
from enum import StrEnum
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import to_json

from redrive.access import Person, named
from redrive.bulk_records import PAGE_LIMIT as PAGE_LIMIT
from redrive.bulk_records import BulkItem as BulkItem
from redrive.bulk_records import BulkItems as BulkItems
from redrive.bulk_records import BulkProgress as BulkProgress
from redrive.bulk_records import BulkRequest as BulkRequest
from redrive.bulk_records import BulkStatus as BulkStatus
from redrive.bulk_records import BulkView as BulkView
from redrive.bulk_records import ItemsRequest as ItemsRequest
from redrive.bulk_records import ItemStatus as ItemStatus
from redrive.bulk_records import Position as Position
from redrive.contracts import Effect, Message, Name, Text255
from redrive.dead_letters import (
    Discard,
    LetterCommand,
    LetterSelection,
    Reason,
    Replay,
    ReplayOptions,
    Resolve,
    Verb,
)

ITEMS_LIMIT: Final = 100_000
# Without a canary, how many outcomes are needed before their share of failures means anything.
JUDGED_FROM: Final = 20

BulkVerb = Literal[Verb.REPLAY, Verb.RESOLVE, Verb.DISCARD]


class BulkControl(StrEnum):
    """Commands to a bulk operation; also the names of its signals and updates."""

    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"


class BulkOptions(ReplayOptions):
    """What to do to which open dead letters of a tenant, with its safety limits."""

    verb: BulkVerb
    selection: LetterSelection = LetterSelection()
    output: Any = Field(default=None, description="what each step would have returned, to resolve")
    rate: float | None = Field(default=None, gt=0, le=1000, description="commands per second at most; none: no limit")
    parallelism: int = Field(default=20, ge=1, le=500, description="how many may be under way at once")
    canary: int = Field(default=0, ge=0, le=ITEMS_LIMIT, description="how many go first, alone, to their outcome")
    stop_percent: float = Field(default=10.0, ge=0, le=100, description="stop when more than this share fails")

    @model_validator(mode="after")
    def _fits_verb(self) -> Self:
        # An activity may return null: that is an output too.
        is_given = "output" in self.model_fields_set if self.verb is Verb.RESOLVE else self.output is not None
        if is_given != (self.verb is Verb.RESOLVE):
            raise ValueError("output: belongs to resolve, and to no other verb")
        if self.verb is not Verb.REPLAY and self.options != ReplayOptions().options:
            raise ValueError(f"{', '.join(ReplayOptions.model_fields)}: belong to replay, and to no other verb")
        return self


class BulkCommand(BulkOptions):
    """A command for many dead letters of one tenant."""

    tenant: Name

    @property
    def action_hash(self) -> str:
        """A hash of what is done to each item."""
        return _digest(self.model_dump(mode="json", include={"verb", "output", *ReplayOptions.model_fields}))


class BulkStart(Message):
    """Start a bulk operation as it was planned. The same request id again is the same bulk operation."""

    request_id: Text255
    command: BulkCommand
    plan_hash: Text255
    requested_by: Text255
    reason: Reason
    allow_unsafe: bool = Field(default=False, description="yes to repeating effects that no key guards")
    needs_approval: bool = Field(default=False, description="whoever sends it demands another person's approval")
    person: Person | None = Field(default=None, description="who answers for it; none: whom `requested_by` names")

    @property
    def responsible(self) -> str:
        """Who has seen the plan, and so cannot also approve it."""
        return self.person or named(self.requested_by)

    @property
    def bulk_id(self) -> str:
        """The id of the bulk operation, and of its workflow."""
        return bulk_id_for(self.command.tenant, self.request_id)


class BulkBegin(Message):
    """Ask a bulk operation whether it begins: it must be about the same command."""

    action_hash: str


class BulkControlInput(Message):
    """Who pauses, resumes or stops a bulk operation, and why."""

    requested_by: Text255
    reason: Reason
    tenant: str | None = Field(default=None, description="if given, it must be the tenant that the operation is of")


class BulkAnswer(Message):
    """The outcome of a start, or of a pause, resume or stop."""

    bulk_id: str
    accepted: bool
    message: str
    code: str | None = None
    status: BulkStatus | None = None


class BulkControlRequest(Message):
    """A command for a bulk operation, for the worker that carries it out."""

    tenant: str
    bulk_id: str
    control: BulkControl
    command: BulkControlInput


class PlannedStep(Message):
    """A step that runs again, and what repeating it means; no effect if the worker does not know its module."""

    name: str
    effect: Effect | None


class PlannedGroup(Message):
    """What happens to the dead letters of one step of one pipeline."""

    pipeline: str
    step: str
    count: int
    run_again: list[PlannedStep] = Field(default=[], description="the dead step, and those before it that run again")
    afterwards: list[str] = Field(default=[], description="later steps, which run when these are done")
    note: str | None = None


class BulkPlan(Message):
    """What a bulk operation would do. Its hash stands for the membership and the command: start it with that."""

    hash: str
    command: BulkCommand = Field(description="as given, with `until` set: what fails later does not belong to it")
    count: int
    groups: list[PlannedGroup]
    unsafe: list[str] = Field(default=[], description="steps whose effects would be repeated without a key")
    approval_needed: bool = False


class PlanAnswer(Message):
    """A plan, or why there is none."""

    plan: BulkPlan | None = None
    problem: str | None = None
    code: str | None = None


class Approval(Message):
    """Another person's approval of a plan."""

    tenant: Name
    plan_hash: Text255
    approved_by: Text255
    reason: Reason
    person: Person | None = Field(default=None, description="who answers for it; none: whom `approved_by` names")

    @property
    def responsible(self) -> str:
        """Who approves."""
        return self.person or named(self.approved_by)


class ApprovalAnswer(Message):
    """Empty, or why an approval does not count."""

    problem: str | None = None
    code: str | None = None


def bulk_id_for(tenant: str, request_id: str) -> str:
    """Return the one bulk operation that belongs to a tenant's request."""
    # The separator cannot occur in a tenant's name, so no two pairs share a text.
    return "bulk-" + hashlib.sha256(f"{tenant}\n{request_id}".encode()).hexdigest()[:32]


def item_request_id(bulk_id: str, letter_id: str) -> str:
    """Return the id of an item's command: with the bulk operation's id in it, and the same for every delivery."""
    return f"{bulk_id}:{hashlib.sha256(letter_id.encode()).hexdigest()[:16]}"


def plan_hash(command: BulkCommand, members: str) -> str:
    """Return the hash of a command and its membership, which is given by a digest."""
    return _digest([command.model_dump(mode="json"), members])[:32]


def item_command(start: BulkStart, letter_id: str) -> LetterCommand:
    """Return the command that an item's dead letter gets."""
    command = start.command
    fields: dict[str, str] = {
        "request_id": item_request_id(start.bulk_id, letter_id),
        "requested_by": start.requested_by,
        "reason": start.reason,
    }
    match command.verb:
        case Verb.REPLAY:
            return Replay(**fields, **command.options)
        case Verb.RESOLVE:
            return Resolve(**fields, output=command.output)
        case Verb.DISCARD:
            return Discard(**fields)


def room(progress: BulkProgress, command: BulkCommand) -> int:
    """Return how many more items may be sent now: the canary's first, and no others until its outcome is known."""
    if progress.status is not BulkStatus.RUNNING:
        return 0
    waiting = progress.canary_pending if progress.canary_open else progress.pending
    return max(0, min(command.parallelism - progress.under_way, waiting))


def stop_reason(progress: BulkProgress, command: BulkCommand) -> str | None:
    """Say why a bulk operation must stop: too many of the outcomes are failures. Skipped items do not count."""
    known = progress.applied + progress.failed
    is_judged = progress.canary_open == 0 if command.canary else known >= JUDGED_FROM
    is_too_much = progress.failed * 100 > command.stop_percent * known
    if not (progress.status is BulkStatus.RUNNING and is_judged and is_too_much):
        return None
    return f"{progress.failed} of {known} failed, more than {command.stop_percent:g} %"


def other_command(request_id: str) -> str:
    """Say that a request id was already used for another command."""
    return f"request {request_id!r} belongs to another bulk operation: give a new request id"


def control_refusal(status: BulkStatus, control: BulkControl) -> str | None:
    """Say why a bulk operation cannot take a command now, or None."""
    allowed = {
        BulkControl.PAUSE: {BulkStatus.RUNNING, BulkStatus.PAUSED},
        BulkControl.RESUME: {BulkStatus.PAUSED, BulkStatus.RUNNING},
        BulkControl.STOP: {BulkStatus.RUNNING, BulkStatus.PAUSED, BulkStatus.STOPPING},
    }
    if status in allowed.get(control, set()):
        return None
    return f"the bulk operation is {status}: there is nothing to {control}"


def status_after_control(control: BulkControl) -> BulkStatus:
    """Return the status that a command gives."""
    match control:
        case BulkControl.PAUSE:
            return BulkStatus.PAUSED
        case BulkControl.STOP:
            return BulkStatus.STOPPING
        case BulkControl.START | BulkControl.RESUME:
            return BulkStatus.RUNNING


def _digest(value: object) -> str:
    return hashlib.sha256(to_json(value)).hexdigest()
