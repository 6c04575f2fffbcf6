"""What records of dead letters are found by and shown with: ids, statuses, filters, what failed in foreign workflows.

Apart from the messages about them: who reads records loads none of those. `dead_letters.py` offers both.
"""

import re
from datetime import timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from pydantic import ConfigDict, Field

from redrive.categories import Category
from redrive.field_types import LabelFilter, Moment
from redrive.messages import Flag, Message, Text255

LETTERS_LIMIT: Final = 1000


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


class Verb(StrEnum):
    """Commands; also the names of the signals and updates that carry them."""

    REPLAY = "replay"
    RESOLVE = "resolve"
    DISCARD = "discard"
    RESTART = "restart"
    CONTINUE = "continue"


class ForeignPlace(NamedTuple):
    """Where a foreign workflow is parked: the operation that failed, Temporal's run id, and the number of the failure.

    A workflow id is used again, and one activity may fail many times in a run. No pipeline's step has an `@`.
    """

    operation: str
    execution: str
    number: int

    @property
    def step(self) -> str:
        """The step of its dead letter."""
        return f"{self.operation}@{self.execution}-{self.number}"


_FOREIGN_STEP: Final = re.compile(r"(.+)@([0-9a-f-]{36})-([0-9]{1,9})", re.DOTALL)


class LetterId(Message):
    """Which dead letter: each (run, step) has exactly one. Without a step: the queue `run_id`, in the audit log."""

    tenant: str
    run_id: str
    step: str

    @property
    def foreign(self) -> ForeignPlace | None:
        """Where its workflow is parked, if that is no pipeline run."""
        found = _FOREIGN_STEP.fullmatch(self.step)
        return ForeignPlace(found[1], found[2], int(found[3])) if found else None

    @property
    def module(self) -> str:
        """What failed: the module, or the activity or child of a foreign workflow."""
        return place.operation if (place := self.foreign) else self.step

    @property
    def execution(self) -> str | None:
        """Temporal's run id of a foreign workflow; None for a pipeline run, which is found by its id alone."""
        return place.execution if (place := self.foreign) else None

    @property
    def workflow_id(self) -> str:
        """The id of the record, and of the workflow that writes it late or takes a command for it."""
        if not self.step:
            return self.run_id
        if place := self.foreign:
            # Names that others chose may be too long to be part of an id.
            return f"dead-letter-{place.execution}-{place.number}"
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
    label: LabelFilter | None = Field(
        default=None,
        exclude_if=lambda value: value is None,
        description="labels that their runs have, all of them: `mission_id=42,stage_id=2`",
    )
    letters: list[Text255] | None = Field(default=None, max_length=LETTERS_LIMIT, description="these, by their ids")


class LetterFilter(LetterSelection):
    """Which dead letters, of one tenant or of all, in whatever status, in one, or all open ones."""

    tenant: str | None = None
    status: LetterStatus | None = None
    open: Flag = Field(default=False, description="only those that are pending or replaying")

    def within(self, tenant: str | None) -> "LetterFilter":
        """Return the filter alone, without what an address or command adds to it, for this tenant or all."""
        return LetterFilter(**{name: getattr(self, name) for name in LetterFilter.model_fields} | {"tenant": tenant})


class OperationKind(StrEnum):
    """What failed in a foreign workflow. `workflow` is the workflow itself, `workflow_task` its code, over and over."""

    ACTIVITY = "activity"
    LOCAL_ACTIVITY = "local_activity"
    MODULE = "module"
    CHILD = "child"
    WORKFLOW = "workflow"
    WORKFLOW_TASK = "workflow_task"


class OperationOptions(Message):
    """How a foreign workflow started what failed: the record's config."""

    kind: OperationKind
    task_queue: str | None = None
    base: timedelta | None = None
    factor: float | None = None
    cap: timedelta | None = None
    max_attempts: int | None = Field(default=None, description="0: no limit")
    timeout: timedelta | None = Field(default=None, description="of one attempt")
    deadline: timedelta | None = Field(default=None, description="of all attempts")
    event_id: int | None = Field(default=None, description="the event that started it, for a reset")
    code_line: Text255 | None = Field(default=None, description="the line of workflow code that waits there, redacted")
    is_encoded: bool = Field(default=False, description="whether its data is encoded: values need the same codec")
