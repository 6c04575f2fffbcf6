"""What a workflow starts and may be parked at: how it is run again, as a command demands. Deterministic."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from json import dumps
from typing import Any, Final, NoReturn

from pydantic import Field, ValidationError
from pydantic_core import from_json
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue, RetryPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ApplicationErrorCategory,
    CancelledError,
    ChildWorkflowError,
    FailureError,
    RetryState,
    is_cancelled_exception,
)
from temporalio.worker import (
    ExecuteWorkflowInput,
    StartActivityInput,
    StartChildWorkflowInput,
    StartLocalActivityInput,
)

from redrive.contracts import ATTEMPT_TEXT_LIMIT, ERROR_TEXT_LIMIT, Attempt, FailedCycle, Message
from redrive.dead_letters import OperationKind, OperationOptions, ReplayOptions
from redrive.documents import merge_patch, validation_sentence
from redrive.policy import Positive
from redrive.workflows.failures import reason_of

_JSON: Final = b"json/plain"


class Misfit(ValueError):
    """What a command carries does not fit the operation; the message says why."""


class PolicyEdit(Message):
    """The fields of a retry policy that Temporal has for an operation too."""

    base: Positive | None = None
    factor: float | None = Field(default=None, ge=1, le=100, allow_inf_nan=False)
    cap: Positive | None = None
    max_attempts: int | None = Field(default=None, ge=1, le=1000)
    timeout: Positive | None = None
    deadline: Positive | None = None

    def applied(self, policy: RetryPolicy | None) -> RetryPolicy | None:
        """Return a retry policy with these fields."""
        changes = {
            "initial_interval": self.base,
            "backoff_coefficient": self.factor,
            "maximum_interval": self.cap,
            "maximum_attempts": self.max_attempts,
        }
        given = {name: value for name, value in changes.items() if value is not None}
        return replace(policy or RetryPolicy(), **given) if given else policy  # type: ignore[arg-type]


def read_policy(fields: dict[str, Any] | None) -> PolicyEdit:
    """Return the edit of a policy, or raise Misfit."""
    try:
        return PolicyEdit.model_validate(fields or {})
    except ValidationError as error:
        names = ", ".join(PolicyEdit.model_fields)
        raise Misfit(f"policy: {validation_sentence(error)}; here it has the fields {names}") from None


class Operation(ABC):
    """Something that failed, with what is needed to run it again."""

    kind: OperationKind
    name: str
    event_id: int | None = None
    code_line: str | None = None
    hidden: Sequence[str] = ()
    """Names whose values are in no record, besides those that the plugin hides."""
    is_marked = True
    """Whether its workflow may be older than the plugin: then a marker in the history says whether it parks."""

    @property
    @abstractmethod
    def options(self) -> OperationOptions:
        """How it was started."""

    @property
    @abstractmethod
    def document(self) -> dict[str, Any]:
        """Its input as JSON, which an edit changes."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The size of its input."""

    @abstractmethod
    def check(self, options: ReplayOptions) -> None:
        """Raise Misfit if it cannot be run again so."""

    @abstractmethod
    async def run_again(self, options: ReplayOptions) -> Any:
        """Run it again with the same input, or with an edited one."""

    @abstractmethod
    def result(self, value: Any) -> Any:
        """Return a value as the operation's result. Raise Misfit if it does not fit its type."""

    @abstractmethod
    def canceled(self, error: BaseException) -> BaseException:
        """Return what is raised when it is canceled while it is parked: what it raises without the plugin."""

    def note(self, error: BaseException) -> None:
        """Note what only the first failure tells: the event that started the operation, and its id."""
        if isinstance(error, ActivityError):
            self.event_id = error.scheduled_event_id or None
        elif isinstance(error, ChildWorkflowError):
            self.event_id = error.initiated_event_id or None

    def is_unexpected(self, error: BaseException) -> bool:
        """Tell whether nobody asked for an error: it is no cancellation, and none that its author calls benign."""
        if not isinstance(error, FailureError) or is_cancelled_exception(error):
            return False
        return not any(
            isinstance(cause, ApplicationError) and cause.category is ApplicationErrorCategory.BENIGN
            for cause in causes(error)
        )

    def is_tried_again(self, error: BaseException) -> bool:  # noqa: ARG002 - the shape of every operation
        """Tell whether Temporal runs it again by itself: what is raised into code is over."""
        return False

    def failed_cycle(self, error: BaseException, cycle: int) -> FailedCycle:
        """Return how it failed, as far as a workflow knows."""
        category, kind, message = reason_of(error)
        attempt = Attempt(
            attempt=self._attempts(error),
            at=workflow.now(),
            category=category,
            error_type=kind,
            error=message[:ATTEMPT_TEXT_LIMIT],
        )
        return FailedCycle(
            step=self.name,
            cycle=cycle,
            category=category,
            error_type=kind,
            message=message[:ERROR_TEXT_LIMIT],
            attempts=[attempt],
            stack=_stack(error)[-ERROR_TEXT_LIMIT:],
            build_id=(version.build_id if (version := workflow.info().get_current_deployment_version()) else ""),
        )

    def _attempts(self, error: BaseException) -> int:
        if isinstance(error, ActivityError | ChildWorkflowError):
            most = self.options.max_attempts
            return most if most and error.retry_state is RetryState.MAXIMUM_ATTEMPTS_REACHED else 1
        return 1


class PayloadOperation(Operation):
    """Something with arguments of the users' own types, which their data converter writes and reads."""

    ret_type: type | None

    def __init__(self, arguments: Sequence[Any], arg_types: list[type] | None) -> None:
        # Taken at the start: code may change the objects later.
        self._payloads = workflow.payload_converter().to_payloads(arguments)
        self._arg_types = arg_types

    def check(self, options: ReplayOptions) -> None:
        """Raise Misfit if the edited arguments or the policy do not fit."""
        read_policy(options.policy)
        self.arguments(options.input_patch)

    async def run_again(self, options: ReplayOptions) -> Any:
        """Run it again with the same arguments, or with edited ones."""
        return await self._start_again(options.input_patch, read_policy(options.policy))

    @abstractmethod
    async def _start_again(self, patch: dict[str, Any] | None, policy: PolicyEdit) -> Any: ...

    @property
    def document(self) -> dict[str, Any]:
        """The arguments as JSON, which an edit changes: a single object itself, others by their positions."""
        values = [_as_json(payload) for payload in self._payloads]
        if len(values) == 1 and isinstance(values[0], dict):
            return values[0]
        return {str(position): value for position, value in enumerate(values)}

    @property
    def size(self) -> int:
        """The size of the arguments."""
        return sum(len(payload.data) for payload in self._payloads)

    def arguments(self, patch: dict[str, Any] | None) -> list[RawValue]:
        """Return the arguments with an edit. Raise Misfit if they do not fit the operation's types then."""
        if patch is None:
            return [RawValue(payload) for payload in self._payloads]
        before = [_as_json(payload) for payload in self._payloads]
        edited = merge_patch(self.document, patch)
        is_single = len(before) == 1 and isinstance(before[0], dict)
        after = [edited] if is_single else _by_position(edited, len(before))
        payloads = [
            payload if old == new else _payload(new)
            for payload, old, new in zip(self._payloads, before, after, strict=True)
        ]
        self._decode(payloads, self._arg_types, f"input_patch: the edited arguments do not fit {self.name!r}")
        return [RawValue(payload) for payload in payloads]

    def result(self, value: Any) -> Any:
        """Return a value as the operation's result. Raise Misfit if it does not fit its type."""
        hints = [self.ret_type] if self.ret_type else None
        return self._decode([_payload(value)], hints, f"output: does not fit what {self.name!r} returns")[0]

    def _decode(self, payloads: list[Payload], hints: list[type] | None, problem: str) -> list[Any]:
        fitting = hints if hints and len(hints) == len(payloads) else None
        try:
            return workflow.payload_converter().from_payloads(payloads, fitting)
        except ValidationError as error:
            raise Misfit(f"{problem}: {validation_sentence(error)}") from None
        except Exception as error:
            raise Misfit(f"{problem}: {type(error).__name__}: {str(error)[:200]}") from None


class ActivityOperation(PayloadOperation):
    """An activity, or a local activity."""

    def __init__(
        self,
        given: StartActivityInput | StartLocalActivityInput,
        start: Callable[[Any], workflow.ActivityHandle[Any]],
    ) -> None:
        super().__init__(given.args, given.arg_types)
        self._input, self._start = given, start
        self._edits = 0
        self.name, self.ret_type = given.activity, given.ret_type
        local = isinstance(given, StartLocalActivityInput)
        self.kind = OperationKind.LOCAL_ACTIVITY if local else OperationKind.ACTIVITY
        self.activity_id: str | None = None

    def note(self, error: BaseException) -> None:
        """Note the activity's id too: a replay has the same."""
        super().note(error)
        if isinstance(error, ActivityError):
            self.activity_id = error.activity_id

    @property
    def options(self) -> OperationOptions:
        """How it was started."""
        queue = self._input.task_queue if isinstance(self._input, StartActivityInput) else None
        return _options(
            self.kind,
            self._input.retry_policy,
            queue,
            self._input.start_to_close_timeout,
            self._input.schedule_to_close_timeout,
        )

    async def _start_again(self, patch: dict[str, Any] | None, policy: PolicyEdit) -> Any:
        """Run it again: with the same activity id, of which keys may be made, unless the arguments are others."""
        changes: dict[str, Any] = {
            "args": self.arguments(patch),
            "retry_policy": policy.applied(self._input.retry_policy),
            "start_to_close_timeout": policy.timeout or self._input.start_to_close_timeout,
            "schedule_to_close_timeout": policy.deadline or self._input.schedule_to_close_timeout,
        }
        if self.activity_id:
            self._edits += patch is not None
            changes["activity_id"] = f"{self.activity_id}~{self._edits}" if self._edits else self.activity_id
        if patch is not None:
            self._payloads = [value.payload for value in changes["args"]]
        return await self._start(replace(self._input, **changes))

    def canceled(self, error: BaseException) -> BaseException:
        """Return what is raised when it is canceled while it is parked."""
        return canceled_activity(error)


class ChildOperation(PayloadOperation):
    """A child workflow."""

    kind = OperationKind.CHILD

    def __init__(
        self,
        given: StartChildWorkflowInput,
        start: Callable[[StartChildWorkflowInput], Any],
    ) -> None:
        super().__init__(given.args, given.arg_types)
        self._input, self._start = given, start
        self.name, self.ret_type = given.workflow, given.ret_type

    @property
    def options(self) -> OperationOptions:
        """How it was started."""
        given = self._input
        return _options(self.kind, given.retry_policy, given.task_queue, given.run_timeout, given.execution_timeout)

    async def _start_again(self, patch: dict[str, Any] | None, policy: PolicyEdit) -> Any:
        """Start it again, under the same id."""
        given = self._input
        is_rejected = given.id_reuse_policy is WorkflowIDReusePolicy.REJECT_DUPLICATE
        arguments = self.arguments(patch)
        if patch is not None:
            self._payloads = [value.payload for value in arguments]
        handle = await self._start(
            replace(
                given,
                args=arguments,
                retry_policy=policy.applied(given.retry_policy),
                run_timeout=policy.timeout or given.run_timeout,
                execution_timeout=policy.deadline or given.execution_timeout,
                # It has failed: that is the one duplicate which is wanted.
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY
                if is_rejected
                else given.id_reuse_policy,
            )
        )
        return await handle

    def canceled(self, error: BaseException) -> BaseException:
        """Return what is raised when it is canceled while it is parked."""
        if not isinstance(error, ChildWorkflowError):
            return CancelledError("Cancelled while parked")
        return ChildWorkflowError(
            "Child Workflow cancelled",
            namespace=error.namespace,
            workflow_id=error.workflow_id,
            run_id=error.run_id,
            workflow_type=error.workflow_type,
            initiated_event_id=error.initiated_event_id,
            started_event_id=error.started_event_id,
            retry_state=RetryState.CANCEL_REQUESTED,
        )


class WorkflowOperation(PayloadOperation):
    """The workflow itself: it is run again by continuing as new."""

    kind = OperationKind.WORKFLOW

    def __init__(self, given: ExecuteWorkflowInput) -> None:
        info = workflow.info()
        super().__init__(given.args, None)
        self.name, self.ret_type = info.workflow_type, None

    @property
    def options(self) -> OperationOptions:
        """How it was started."""
        info = workflow.info()
        return _options(self.kind, info.retry_policy, info.task_queue, info.run_timeout, info.execution_timeout)

    def is_unexpected(self, error: BaseException) -> bool:
        """Tell whether nobody asked for an error, also if it is one of the worker's own failure types."""
        return not isinstance(error, FailureError) or super().is_unexpected(error)

    def is_tried_again(self, error: BaseException) -> bool:
        """Tell whether the workflow's own retry policy has attempts left for this error."""
        info = workflow.info()
        policy = info.retry_policy
        if policy is None or 0 < policy.maximum_attempts <= info.attempt:
            return False
        named = error if isinstance(error, ApplicationError) else None
        kind = named.type if named else type(error).__name__
        return not (named and named.non_retryable) and kind not in (policy.non_retryable_error_types or ())

    def check(self, options: ReplayOptions) -> None:
        """Raise Misfit if it cannot continue as new so."""
        super().check(options)
        if options.policy and "deadline" in options.policy:
            raise Misfit("policy: a workflow that continues as new keeps its deadline")

    async def _start_again(self, patch: dict[str, Any] | None, policy: PolicyEdit) -> NoReturn:
        """Continue as new; waiting clients and parents follow."""
        retries = workflow.info().retry_policy
        workflow.continue_as_new(
            args=self.arguments(patch), retry_policy=policy.applied(retries), run_timeout=policy.timeout
        )

    def _attempts(self, error: BaseException) -> int:  # noqa: ARG002 - the shape of every operation
        return workflow.info().attempt

    def canceled(self, error: BaseException) -> BaseException:  # noqa: ARG002 - the shape of every operation
        """Return what is raised when it is canceled while it is parked."""
        return CancelledError("Cancelled while parked")


def canceled_activity(error: BaseException) -> BaseException:
    """Return what an activity that has failed so raises when it is canceled while it is parked."""
    if not isinstance(error, ActivityError):
        return CancelledError("Cancelled while parked")
    return ActivityError(
        "Activity cancelled",
        scheduled_event_id=error.scheduled_event_id,
        started_event_id=error.started_event_id,
        identity=error.identity,
        activity_type=error.activity_type,
        activity_id=error.activity_id,
        retry_state=RetryState.CANCEL_REQUESTED,
    )


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _stack(error: BaseException) -> str:
    for cause in causes(error):
        if isinstance(cause, ApplicationError) and cause.failure is not None and cause.failure.stack_trace:
            return cause.failure.stack_trace
    return ""


def _options(
    kind: OperationKind,
    policy: RetryPolicy | None,
    task_queue: str | None,
    timeout: timedelta | None,
    deadline: timedelta | None,
) -> OperationOptions:
    return OperationOptions(
        kind=kind,
        task_queue=task_queue,
        base=policy.initial_interval if policy else None,
        factor=policy.backoff_coefficient if policy else None,
        cap=policy.maximum_interval if policy else None,
        max_attempts=policy.maximum_attempts if policy else None,
        timeout=timeout,
        deadline=deadline,
    )


def _as_json(payload: Payload) -> Any:
    """Return a payload's value, or what is shown of one that is not JSON."""
    encoding = payload.metadata.get("encoding", b"").decode(errors="replace")
    if encoding == "binary/null":
        return None
    try:
        return from_json(payload.data)
    except ValueError:
        return {"omitted": encoding or "not JSON"}


def _payload(value: Any) -> Payload:
    return Payload(metadata={"encoding": _JSON}, data=dumps(value, ensure_ascii=False).encode())


def _by_position(edited: dict[str, Any], count: int) -> list[Any]:
    unknown = sorted(edited.keys() - {str(position) for position in range(count)})
    if unknown:
        raise Misfit(f"input_patch.{unknown[0]}: there are {count} arguments, by their positions from 0")
    # A member that a merge patch removes is null: an argument cannot be left out.
    return [edited.get(str(position)) for position in range(count)]
