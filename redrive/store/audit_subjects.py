"""What an entry of the audit log is about, by kind and id. Entries that are older than a kind name it elsewhere."""

from enum import StrEnum
from typing import Any, Final

from redrive.postgres.values import Record


class SubjectKind(StrEnum):
    """What there are entries about."""

    DEAD_LETTER = "dead letter"
    RUN = "run"
    EVENT = "event"
    DEAD_EVENT = "dead event"
    MESSAGE = "message"
    OUTBOX_ROW = "outbox row"
    PLAN = "plan"
    BULK = "bulk operation"
    SCHEDULE = "schedule"
    PIPELINE = "pipeline"
    TOKEN = "token"  # noqa: S105 - no secret
    MEMBER = "member"
    RECORDS = "records"
    OTHER = ""


class Subject(Record):
    """What an entry is about."""

    kind: SubjectKind
    id: str

    def __str__(self) -> str:
        return f"{self.kind} {self.id}".strip()


# How the ids begin that brokers' records have in the log.
_PREFIXES: Final = {
    "message-": SubjectKind.MESSAGE,
    "dead-event-": SubjectKind.DEAD_EVENT,
    "event-": SubjectKind.EVENT,
    "outbox-": SubjectKind.OUTBOX_ROW,
}
# What entries without an id of their own say, in this order.
_FACTS: Final = {
    "plan_hash": SubjectKind.PLAN,
    "schedule": SubjectKind.SCHEDULE,
    "token": SubjectKind.TOKEN,
    "member": SubjectKind.MEMBER,
    "pipeline": SubjectKind.PIPELINE,
    "kind": SubjectKind.RECORDS,
}


def subject_of(
    *, action: str, dead_letter: str | None, run_id: str | None, step: str | None, request_id: str | None, after: Any
) -> Subject | None:
    """Return what an entry is about; None: the log itself."""
    if dead_letter is not None:
        return Subject(kind=SubjectKind.DEAD_LETTER, id=dead_letter) if step else _broker_record(dead_letter)
    if action.startswith("bulk_") and request_id:
        return Subject(kind=SubjectKind.BULK, id=request_id)
    if run_id is not None:
        return Subject(kind=SubjectKind.RUN, id=run_id)
    facts = after if isinstance(after, dict) else {}
    return next((Subject(kind=kind, id=str(facts[name])) for name, kind in _FACTS.items() if facts.get(name)), None)


def _broker_record(name: str) -> Subject:
    kind = next((kind for prefix, kind in _PREFIXES.items() if name.startswith(prefix)), SubjectKind.OTHER)
    return Subject(kind=kind, id=name)
