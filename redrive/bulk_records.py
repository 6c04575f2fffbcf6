"""Bulk operations as records show them: status, progress, items.

Apart from the messages about them: who reads records loads none of those. `bulk.py` offers both.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field

from redrive.dead_letter_records import Verb
from redrive.messages import Message, Name, Text255

PAGE_LIMIT: Final = 1000
# The range of the column.
Position = Annotated[int, Field(ge=0, le=2**31 - 1)]


class BulkStatus(StrEnum):
    """A bulk operation's status."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    DONE = "DONE"

    @property
    def closed(self) -> bool:
        """Tell whether it has ended."""
        return self in {BulkStatus.STOPPED, BulkStatus.DONE}


class ItemStatus(StrEnum):
    """The status of an item of a bulk operation. The last three are final."""

    PENDING = "PENDING"
    SENDING = "SENDING"
    ACCEPTED = "ACCEPTED"
    APPLIED = "APPLIED"
    SKIPPED = "SKIPPED"
    FAILED = "FAILED"


class BulkProgress(Message):
    """A bulk operation's progress: the counts of all items always add up to the total."""

    status: BulkStatus
    total: int = 0
    pending: int = 0
    sending: int = 0
    accepted: int = Field(default=0, description="accepted; the outcome of the replay is not known yet")
    applied: int = 0
    skipped: int = 0
    failed: int = 0
    canary_pending: int = 0
    canary_open: int = Field(default=0, description="items of the canary whose outcome is not known yet")

    since_sent: float | None = Field(default=None, description="seconds since items were sent last; none: never")

    @property
    def under_way(self) -> int:
        """How many commands are being sent or carried out now."""
        return self.sending + self.accepted

    @property
    def finished(self) -> bool:
        """Tell whether every item has ended."""
        return self.pending + self.under_way == 0

    @property
    def idle(self) -> bool:
        """Tell whether nothing happens until somebody resumes it."""
        return self.status is BulkStatus.PAUSED and self.under_way == 0


class BulkRequest(Message):
    """Ask for a bulk operation."""

    tenant: Name
    bulk_id: Text255


class ItemsRequest(BulkRequest):
    """Ask for items of a bulk operation, after the end of the previous page."""

    status: ItemStatus | None = None
    limit: int = Field(default=100, ge=1, le=PAGE_LIMIT)
    after: Position | None = None


class BulkItem(Message):
    """One item and its outcome."""

    position: int
    letter_id: str
    run_id: str
    step: str
    status: ItemStatus
    why: str | None
    updated_at: datetime


class BulkItems(Message):
    """A page of items; `after` is where the next one begins, None if there are no more."""

    items: list[BulkItem]
    after: int | None


class BulkView(Message):
    """A bulk operation as an operator sees it."""

    id: str
    tenant: str
    verb: Verb
    status: BulkStatus
    progress: BulkProgress
    options: dict[str, Any] = Field(description="what was accepted; of an edit or output only that there is one")
    plan_hash: str
    request_id: str
    requested_by: str
    reason: str
    stopped_because: str | None
    started_at: datetime
    finished_at: datetime | None
