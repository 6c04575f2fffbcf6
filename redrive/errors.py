"""The errors of Redrive.

RedriveError                 every error of this package; `code` is stable, the message names the value
├── RegistrationError        a module or pipeline is declared wrongly (raised at import)
├── InvalidInput             a caller's input is refused; nothing was changed
│   ├── UnknownPipeline
│   ├── TooLarge
│   ├── ScheduleExists
│   └── IdempotencyMismatch  the key belongs to another request
├── RunNotFound
├── ScheduleNotFound
├── LetterNotFound
├── EventNotFound
├── MessageNotFound
├── CommandRefused             a command was refused; nothing was changed
├── VersionChanged           the record has changed meanwhile; nothing was changed
├── BulkNotFound
├── BulkRefused              a bulk operation does not start, or does not take a command
│   ├── PlanChanged
│   ├── UnsafeEffects
│   └── ApprovalNeeded
├── ApprovalNotFound         no plan waits for approval under that hash
├── SameApprover                 who asked for an approval cannot give it
├── RunFailed                the awaited run ended FAILED
├── RunCanceled              the awaited run ended CANCELED
├── KeyNotFound
├── KeyInUse                 the key's run is open: a reset needs force
├── Unavailable              Temporal, Postgres or a worker did not answer; try again
│   ├── NotConfigured        no server is named, and no stack is here
│   └── OutcomeUnknown       a start with a key may or may not have happened; try the same key again
├── OtherNamespace           the database belongs to another Temporal namespace
├── StackError               the embedded stack cannot start
├── AttemptEnded             raised in a plain function whose attempt is over: it should return
└── StepError                why a step's attempt failed, with its category
    ├── Transient            raised by a module: retry
    ├── Terminal             raised by a module: a retry cannot help
    └── ServiceError         a service answered with an error, or did not answer
"""

from datetime import timedelta
from typing import ClassVar

from redrive.categories import Category


class RedriveError(Exception):
    """The base of every error that Redrive raises."""

    code: ClassVar[str] = "redrive_error"


class RegistrationError(RedriveError):
    """A module or pipeline is declared wrongly; the message says which one and how to fix it."""

    code = "registration_error"


class AttemptEnded(RedriveError):
    """A module that is a plain function runs on after its deadline or a cancellation: it should return."""

    code = "attempt_ended"


class InvalidInput(RedriveError):
    """A caller's input is refused; the message says why."""

    code = "invalid_input"


class UnknownPipeline(InvalidInput):
    """No worker knows a pipeline with that name."""

    code = "unknown_pipeline"


class TooLarge(InvalidInput):
    """A payload or result exceeds its limit."""

    code = "too_large"


class ScheduleExists(InvalidInput):
    """The tenant has a schedule with that name already."""

    code = "schedule_exists"


class IdempotencyMismatch(InvalidInput):
    """The key was used for another pipeline or payload. Their fingerprints are shown, their contents are not."""

    code = "idempotency_mismatch"

    def __init__(self, key: str, *, known: str, given: str) -> None:
        super().__init__(
            f"key {key!r} belongs to another request (fingerprint {known}, this one has {given}): "
            "send the first payload again, or use another key"
        )
        self.key = key
        self.known = known
        self.given = given


class RunNotFound(RedriveError):
    """No run has that id."""

    code = "run_not_found"


class ScheduleNotFound(RedriveError):
    """The tenant has no schedule with that name."""

    code = "schedule_not_found"


class LetterNotFound(RedriveError):
    """No dead letter has that id."""

    code = "dead_letter_not_found"


class EventNotFound(RedriveError):
    """No event, or no dead event, has that id."""

    code = "event_not_found"


class MessageNotFound(RedriveError):
    """No dead message has that id."""

    code = "message_not_found"


class CommandRefused(RedriveError):
    """A command was refused; nothing was changed."""

    code = "command_refused"


class VersionChanged(RedriveError):
    """The record has changed since the operator looked at it; nothing was changed."""

    code = "version_changed"

    def __init__(self, what: str, *, status: str, version: str) -> None:
        super().__init__(f"the {what} has changed since: it is {status}, at version {version}")
        self.version = version


class BulkNotFound(RedriveError):
    """No bulk operation has that id, or it has ended."""

    code = "bulk_not_found"


class BulkRefused(RedriveError):
    """A bulk operation does not start, or does not take a command; nothing was changed."""

    code = "bulk_refused"


class PlanChanged(BulkRefused):
    """The dead letters, or the command, are no longer those of the plan."""

    code = "PLAN_CHANGED"


class UnsafeEffects(BulkRefused):
    """Effects that no key protects would be repeated, and nobody confirmed that."""

    code = "UNSAFE_EFFECTS"


class ApprovalNeeded(BulkRefused):
    """The plan waits for another person's approval."""

    code = "APPROVAL_NEEDED"


class ApprovalNotFound(RedriveError):
    """Nobody asked for an approval of that plan, or the request has expired."""

    code = "approval_not_found"


class SameApprover(RedriveError):
    """Whoever asked for an approval cannot give it, with whichever token."""

    code = "same_approver"


class RunFailed(RedriveError):
    """The run ended FAILED; the message says which step and why."""

    code = "run_failed"


class RunCanceled(RedriveError):
    """The run ended CANCELED."""

    code = "run_canceled"


class Unavailable(RedriveError):
    """Something that Redrive needs did not answer. Nothing is known to be wrong with the request: try again."""

    code = "unavailable"


class NotConfigured(Unavailable):
    """No server is named, and there is no stack in this directory: the message says what to set."""

    code = "not_configured"


class OutcomeUnknown(Unavailable):
    """Whether a start with a key happened is unknown. Trying the same key again is safe, and settles it."""

    code = "outcome_unknown"


class KeyNotFound(RedriveError):
    """The tenant has no such idempotency key."""

    code = "key_not_found"


class KeyInUse(RedriveError):
    """The key's run is open: giving the key to another run needs force."""

    code = "key_in_use"


class OtherNamespace(RedriveError):
    """The database's rows belong to another Temporal namespace; nothing was changed."""

    code = "other_namespace"


class StackError(RedriveError):
    """The embedded stack cannot start, or cannot continue."""

    code = "stack_error"


class StepError(RedriveError):
    """Why one attempt failed: its category, and how long the service asked to wait."""

    code = "step_error"

    def __init__(self, message: str, *, category: Category, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.category = category
        self.retry_after = retry_after


class Transient(StepError):
    """Raise from a module to have the step retried, whatever the policy says about unknown errors."""

    code = "transient"

    def __init__(
        self, message: str, *, category: Category = Category.UNKNOWN, retry_after: timedelta | None = None
    ) -> None:
        super().__init__(message, category=category, retry_after=retry_after)


class Terminal(StepError):
    """Raise from a module to end the step's attempts: a retry cannot help."""

    code = "terminal"

    def __init__(self, message: str, *, category: Category = Category.VALIDATION) -> None:
        super().__init__(message, category=category)


class ServiceError(StepError):
    """A service answered with an error status (`status`), or gave no usable answer (`status` is None)."""

    code = "service_error"

    def __init__(
        self, message: str, *, category: Category, status: int | None = None, retry_after: timedelta | None = None
    ) -> None:
        super().__init__(message, category=category, retry_after=retry_after)
        self.status = status
