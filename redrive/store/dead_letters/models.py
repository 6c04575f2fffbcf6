"""Dead letters and audit entries as they are read from the database."""

from datetime import datetime, timedelta
from typing import Any

from pydantic import Field

from redrive.categories import Category
from redrive.dead_letter_records import LetterId, LetterStatus, Mode, OperationKind, Verb
from redrive.errors import CommandRefused
from redrive.messages import Attempt
from redrive.postgres.values import Record


class LetterRow(Record):
    """A dead letter in a list."""

    id: str
    tenant: str
    run_id: str
    step: str
    module: str
    pipeline: str
    status: LetterStatus
    category: Category
    error_type: str
    message: str = Field(description="of a long one the beginning and the end")
    attempt_count: int = Field(description="attempts in the last cycle")
    cycle: int
    first_failed_at: datetime = Field(description="in the last cycle")
    last_failed_at: datetime
    fingerprint: str
    correlation_id: str
    idempotency_key: str | None
    replay_count: int
    blocked_by: str | None
    orphaned: bool
    version: int
    updated_at: datetime

    @property
    def letter(self) -> LetterId:
        """The id by which its workflow is reached."""
        return LetterId(tenant=self.tenant, run_id=self.run_id, step=self.step)


class FailureCycleEntry(Record):
    """How one cycle ended: an entry of `failure_history`."""

    cycle: int
    attempts: list[Attempt]
    category: Category
    error_type: str
    message: str
    build_id: str = Field(description="build id of the worker that made the last attempt")
    first_failed_at: datetime
    last_failed_at: datetime
    replayed_by: str | None = Field(default=None, description="whose replay opened the cycle; none: the run itself")
    mode: Mode | None = None
    reason: str | None = None


class LetterRecord(LetterRow):
    """A dead letter without its audit trail. Payload and config are redacted."""

    message: str
    stack: str
    attempts: list[Attempt]
    failure_history: list[FailureCycleEntry]
    payload: Any
    config: dict[str, Any]
    labels: dict[str, str] = Field(default_factory=dict, description="what the caller said of the run")
    build_id: str
    replayed_by: str | None
    replayed_at: datetime | None
    replay_mode: Mode | None
    replay_reason: str | None
    resolution: str | None
    resolved_by: str | None
    resolved_at: datetime | None
    resolution_reason: str | None
    created_at: datetime

    def possible_commands(self, home_problem: str | None) -> list[str]:
        """Return the commands that it takes now; none where the records belong to another Temporal."""
        if home_problem or self.status is not LetterStatus.PENDING:
            return []
        if self.orphaned:
            return [Verb.DISCARD] if self.letter.foreign else [Verb.RESTART, Verb.DISCARD]
        if self.blocked_by or self.config.get("kind") == OperationKind.WORKFLOW_TASK:
            return []
        can_be_reset = self.letter.foreign and self.config.get("event_id")
        return [Verb.REPLAY, Verb.RESOLVE, Verb.DISCARD, *(["reset"] if can_be_reset else [])]

    def reset_event(self) -> int:
        """Return the event before which its workflow is reset, or raise why it cannot be."""
        event = self.config.get("event_id")
        if self.config.get("kind") == OperationKind.WORKFLOW_TASK:
            raise CommandRefused("the workflow's own code fails: reset it with Temporal's own tools")
        if not self.letter.foreign or not isinstance(event, int):
            raise CommandRefused(
                "reset is for activities and children of workflows that are no pipeline runs: use replay"
            )
        if self.status is not LetterStatus.PENDING:
            raise CommandRefused(f"the dead letter is {self.status}: a reset would do again what was done since")
        return event


class LetterGroup(Record):
    """Similar open dead letters."""

    tenant: str
    fingerprint: str
    count: int
    pipeline: str
    step: str
    category: Category
    error_type: str
    message: str = Field(description="of the newest one")
    sample: str = Field(description="the id of the newest one")
    first_failed_at: datetime
    last_failed_at: datetime


class LetterStats(Record):
    """How many dead letters there are."""

    by_status: dict[LetterStatus, int]
    oldest_open: timedelta | None = Field(description="how long ago the oldest open one failed first in its cycle")
    looked_at: int = Field(description="the newest open ones, which the rest is about: all, unless there are very many")
    by_category: dict[Category, int]
    by_step: dict[str, int]
    groups: list[LetterGroup]

    @property
    def open(self) -> int:
        """How many wait for a command or an outcome."""
        return self.by_status[LetterStatus.PENDING] + self.by_status[LetterStatus.REPLAYING]


class AuditEntry(Record):
    """One line of the audit log."""

    number: int
    at: datetime
    action: str
    actor: str
    reason: str | None
    request_id: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    hash: str
