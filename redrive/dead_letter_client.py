"""The operators' client: commands to dead letters, and the plan of a replay."""

import asyncio
import contextlib
from datetime import timedelta
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from redrive.contracts import Message, Query, Workflow
from redrive.dead_letters import (
    Answer,
    Continue,
    Discard,
    LetterCommand,
    LetterId,
    LetterInput,
    Mode,
    Replay,
    Resolve,
    Restart,
    RunDocument,
)
from redrive.documents import validation_sentence
from redrive.errors import InvalidInput, RunNotFound, Unavailable
from redrive.identifiers import check_identifiers
from redrive.keys import new_request_id

ANSWER_TIMEOUT = timedelta(seconds=15)
RETRY_INTERVAL = timedelta(milliseconds=200)
CommandType = TypeVar("CommandType", Replay, Resolve, Discard, Restart, Continue)

# The dead letter has just ended, a worker failed, or it has ten updates in flight, which is Temporal's limit.
_NOT_NOW: Final = {RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.RESOURCE_EXHAUSTED}


class Plan(Message):
    """What a replay would do: which steps are reused, which run again, which stay for later."""

    reused: list[str]
    run_again: list[str]
    left_for_later: list[str]


class _NotReady(Exception):
    """The dead letter's workflow ended, or its worker failed, before the command reached it: send it again."""


class DeadLetters:
    """Send commands to dead letters. Each takes who asks and why; the same request id again gets the first answer."""

    def __init__(self, client: Client, task_queue: str) -> None:
        self._client = client
        self._task_queue = task_queue

    async def replay(
        self,
        letter: LetterId,
        *,
        requested_by: str,
        reason: str,
        mode: Mode = Mode.FROM_STEP,
        from_step: str | None = None,
        input_patch: dict[str, Any] | None = None,
        policy: dict[str, Any] | None = None,
        request_id: str | None = None,
    ) -> Answer:
        """Run the dead step again: the same run continues in place."""
        fields = _identity(requested_by, reason, request_id)
        command = _made(Replay, **fields, mode=mode, from_step=from_step, input_patch=input_patch, policy=policy)
        return await self.send(letter, command)

    async def resolve(
        self, letter: LetterId, *, output: dict[str, Any], requested_by: str, reason: str, request_id: str | None = None
    ) -> Answer:
        """Let the run continue as if the step had returned this output."""
        return await self.send(letter, _made(Resolve, **_identity(requested_by, reason, request_id), output=output))

    async def discard(
        self, letter: LetterId, *, requested_by: str, reason: str, request_id: str | None = None
    ) -> Answer:
        """Discard it: the run ends FAILED."""
        return await self.send(letter, _made(Discard, **_identity(requested_by, reason, request_id)))

    async def restart(
        self, letter: LetterId, *, requested_by: str, reason: str, request_id: str | None = None
    ) -> Answer:
        """Start a new run from the dead step, if the dead letter's run is gone."""
        return await self.send(letter, _made(Restart, **_identity(requested_by, reason, request_id)))

    async def send(self, letter: LetterId, command: LetterCommand) -> Answer:
        """Send a command and return the answer. A dead letter that was closed long ago also answers."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT.total_seconds()):
                while True:
                    with contextlib.suppress(_NotReady):
                        return await self._give(letter, command)
                    await asyncio.sleep(RETRY_INTERVAL.total_seconds())
        except (TimeoutError, RPCError, WorkflowUpdateRPCTimeoutOrCancelledError, WorkflowUpdateFailedError) as error:
            raise Unavailable(
                f"no answer to command {command.request_id!r} ({type(error).__name__}): it may be carried out yet; "
                "give it again with the same request id"
            ) from error

    async def _give(self, letter: LetterId, command: LetterCommand) -> Answer:
        operation: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            Workflow.DEAD_LETTER,
            LetterInput(letter=letter),
            id=letter.workflow_id,
            task_queue=self._task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        )
        started = asyncio.create_task(operation.workflow_handle())
        try:
            answer: Answer = await self._client.execute_update_with_start_workflow(
                command.verb.value,
                command,
                id=command.request_id,
                start_workflow_operation=operation,
                result_type=Answer,
            )
        except RPCError as error:
            if error.status in _NOT_NOW:
                raise _NotReady from error
            raise
        finally:
            # Read, so that asyncio does not report an exception that was never retrieved; it is the one raised.
            started.cancel()
        return answer

    async def go_on(self, run_id: str, *, requested_by: str, reason: str, request_id: str | None = None) -> Answer:
        """Let a PARTIAL run continue with its later steps (`continue`)."""
        command = _made(Continue, **_identity(requested_by, reason, request_id))
        handle = self._client.get_workflow_handle(run_id)
        try:
            answer: Answer = await handle.execute_update(
                command.verb.value, command, id=command.request_id, result_type=Answer, rpc_timeout=ANSWER_TIMEOUT
            )
        except (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError, WorkflowUpdateFailedError) as error:
            raise _run_error(run_id, error) from error
        return answer

    async def plan(self, letter: LetterId, *, mode: Mode = Mode.FROM_STEP, from_step: str | None = None) -> Plan:
        """Return what a replay would do, without doing it."""
        try:
            run: RunDocument = await self._client.get_workflow_handle(letter.run_id).query(
                Query.DOCUMENT, result_type=RunDocument, rpc_timeout=ANSWER_TIMEOUT
            )
        except (RPCError, WorkflowQueryFailedError) as error:
            raise _run_error(letter.run_id, error) from error
        names = [step.name for step in run.steps]
        first = from_step or letter.step
        if letter.step not in names or first not in names[: names.index(letter.step) + 1]:
            raise InvalidInput(f"from_step {first!r}: not one of the steps up to the failed one")
        last = names.index(letter.step) if mode is Mode.STEP_ONLY else len(names) - 1
        start = names.index(first)
        return Plan(reused=names[:start], run_again=names[start : last + 1], left_for_later=names[last + 1 :])


def _identity(requested_by: str, reason: str, request_id: str | None) -> dict[str, str]:
    check_identifiers(requested_by=requested_by, request_id=request_id)
    return {"requested_by": requested_by, "reason": reason, "request_id": request_id or new_request_id()}


def _made(kind: type[CommandType], **fields: Any) -> CommandType:
    try:
        return kind(**fields)
    except ValidationError as error:
        raise InvalidInput(validation_sentence(error)) from error


def _run_error(run_id: str, error: Exception) -> RunNotFound | Unavailable:
    if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
        return RunNotFound(f"no open run has the id {run_id!r}")
    return Unavailable(f"run {run_id!r} did not answer: {error}")
