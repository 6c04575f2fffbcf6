"""Names that runs are found by and shown with: workflow types, search attributes, statuses; brokers; a run in a list.

Plain Python: who lists runs loads no models. `contracts.py` offers them with everything else that crosses a process.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

KEYWORD_LIMIT: Final = 255
NAME_PATTERN: Final = r"^[a-z0-9-]{1,64}$"
DEFAULT_TENANT: Final = "default"


class Workflow(StrEnum):
    """Names of workflow types."""

    MODULE_RUN = "ModuleRun"
    SCHEDULED_RUN = "ScheduledRun"
    DESCRIBE_MODULES = "DescribeModules"
    RESOLVE_PIPELINE = "ResolvePipeline"
    PROBE_SERVICES = "ProbeServices"
    DEAD_LETTER_QUEUE = "DeadLetterQueue"
    DEAD_LETTER = "DeadLetter"
    RECORD_COMMAND = "RecordCommand"
    RECORD_KEY = "RecordKey"
    EXPIRE_KEYS = "ExpireKeys"
    RAISE_ALERT = "RaiseAlert"
    BULK_REPLAY = "BulkReplay"
    PLAN_BULK = "PlanBulk"
    APPROVE_BULK = "ApproveBulk"
    DESCRIBE_BULK = "DescribeBulk"
    LIST_BULK_ITEMS = "ListBulkItems"
    RETRY_SWEEP = "RetrySweep"
    PURGE_RECORDS = "PurgeRecords"
    ANCHOR_AUDIT = "AnchorAudit"


class Broker(StrEnum):
    """What has a bridge: its command, its server in a stack, its address in `stack.json`."""

    REDIS = "redis"
    RABBITMQ = "rabbitmq"
    OUTBOX = "outbox"


class SearchAttribute(StrEnum):
    """Names of the search attributes of a run. All are keywords."""

    TENANT = "RedriveTenant"
    PIPELINE = "RedrivePipeline"
    STATUS = "RedriveStatus"
    FAILED_STEP = "RedriveFailedStep"
    CATEGORY = "RedriveCategory"


LABELS_ATTRIBUTE: Final = "RedriveLabels"
"""The search attribute of a run's labels, a list of keywords: `mission_id=42`."""


class RunStatus(StrEnum):
    """A run's status."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    DLQ_PENDING = "DLQ_PENDING"
    PARTIAL = "PARTIAL"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    CANCELED = "CANCELED"

    @property
    def closed(self) -> bool:
        """Tell whether the run has ended for good."""
        return self in {RunStatus.SUCCESS, RunStatus.FAILED, RunStatus.CANCELED}


class StepStatus(StrEnum):
    """A step's status."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    RETRYING = "RETRYING"
    DLQ = "DLQ"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run in a list."""

    run_id: str
    tenant: str
    pipeline: str
    status: RunStatus
    failed_step: str | None = None
    category: str | None = None
    started_at: datetime
    closed_at: datetime | None = None


def label_pairs(chosen: str | None) -> list[tuple[str, str]]:
    """Return the names and values of a filter by labels."""
    parts = (pair.partition("=") for pair in (chosen or "").split(",") if pair)
    return [(name, value) for name, _, value in parts]
