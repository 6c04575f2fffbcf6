"""The refusals of the command line, besides those of the SDK."""

from redrive.errors import InvalidInput, RedriveError


class WrongUsage(InvalidInput):
    """The options contradict each other, or one is missing."""

    code = "wrong_usage"


class NotConfirmed(RedriveError):
    """Nobody confirmed; nothing was changed."""

    code = "not_confirmed"


class BulkIncomplete(RedriveError):
    """A bulk operation has ended, but not every dead letter of it was handled."""

    code = "bulk_incomplete"


class RunParked(RedriveError):
    """The run is parked: one of its steps is a dead letter."""

    code = "run_parked"


class AuditBroken(RedriveError):
    """The audit log was changed after it was written."""

    code = "audit_broken"


class HeadCut(RedriveError):
    """The recorded head is older than the audit log's last cut: there is nothing left to compare it with."""

    code = "head_cut"


class StoresDisagree(RedriveError):
    """Temporal and Postgres disagree."""

    code = "stores_disagree"
