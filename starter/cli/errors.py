"""The refusals of the command line, beside those of the SDK."""

from redrive.errors import InvalidInput, RedriveError


class WrongUsage(InvalidInput):
    """The words of the command contradict each other, or one is missing."""

    code = "wrong_usage"


class NotConfirmed(RedriveError):
    """Nobody said yes; nothing was changed."""

    code = "not_confirmed"


class BulkIncomplete(RedriveError):
    """A bulk operation has ended, but not every dead letter of it was dealt with."""

    code = "bulk_incomplete"


class RunParked(RedriveError):
    """The run that was waited for is parked: a step of it is a dead letter."""

    code = "run_parked"


class AuditBroken(RedriveError):
    """The audit log was changed after it was written."""

    code = "audit_broken"


class HeadCut(RedriveError):
    """The head that was noted is older than the audit log's last cut: there is nothing left to compare it with."""

    code = "head_cut"


class StoresDisagree(RedriveError):
    """Temporal and Postgres tell different stories."""

    code = "stores_disagree"
