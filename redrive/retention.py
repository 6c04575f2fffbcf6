"""How long closed records are kept, kind by kind. Pure."""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

# The database's function refuses less, whoever asks.
AUDIT_FLOOR: Final = timedelta(days=30)
_SHORTEST: Final = timedelta(days=1)
Kept = Annotated[timedelta, Field(ge=_SHORTEST)]


class Kind(StrEnum):
    """The kinds of records with their own retention."""

    RUNS = "runs"
    DEAD_LETTERS = "dead_letters"
    EVENTS = "events"
    DEAD_EVENTS = "dead_events"
    DEAD_MESSAGES = "dead_messages"
    BULK = "bulk"
    APPROVALS = "approvals"
    AUDIT = "audit"


class RetentionSettings(BaseModel):
    """How long each kind is kept once it is closed; None: forever."""

    model_config = ConfigDict(extra="forbid")

    runs: Kept | None = timedelta(days=90)
    dead_letters: Kept | None = timedelta(days=90)
    events: Kept | None = timedelta(days=90)
    dead_events: Kept | None = timedelta(days=90)
    dead_messages: Kept | None = timedelta(days=90)
    bulk: Kept | None = timedelta(days=90)
    approvals: Kept | None = timedelta(days=90)
    audit: Annotated[timedelta, Field(ge=AUDIT_FLOOR)] | None = timedelta(days=400)

    def of(self, kind: Kind) -> timedelta | None:
        """Return how long a kind is kept."""
        kept: timedelta | None = getattr(self, kind.value)
        return kept

    def only(self, kinds: set[Kind]) -> "RetentionSettings":
        """Return the same for these kinds only; the others are kept."""
        return self.model_copy(update={kind.value: None for kind in Kind if kind not in kinds})
