"""The operators' client: commands to dead letters, and the plan of a replay."""

import asyncio
import contextlib
from datetime import timedelta
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from redrive.contracts import Message, Query, Update, Workflow
from redrive.dead_letters import (
    REASON_LIMIT,
    Answer,
    Continue,
    Discard,
    LetterCommand,
    LetterId,
    LetterInput,
    Mode,
    Replay,
    Reply,
    Resolve,
    Restart,
    RunDocument,
)
from redrive.documents import validation_sentence
from redrive.errors import InvalidInput, RunNotFound, Unavailable
from redrive.keys import check_identifiers, new_request_id

ANSWER_TIMEOUT = timedelta(seconds=15)
RETRY_INTERVAL = timedelta(milliseconds=200)
SEND_AGAIN = timedelta(seconds=5)
CommandType = TypeVar("CommandType", Replay, Resolve, Discard, Restart, Continue)

_NO_ANSWER: Final = (
    TimeoutError,
    RPCError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
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
        self, letter: LetterId, *, output: Any, requested_by: str, reason: str, request_id: str | None = None
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

    async def reset(
        self, letter: LetterId, event_id: int, *, requested_by: str, reason: str, request_id: str | None = None
    ) -> Answer:
        """Reset a foreign workflow to before the event that started what failed, and close the dead letter.

        Everything since that event is done again by a new run; the old one ends as terminated, and whoever waits for it
        is told so.
        """
        fields = _identity(requested_by, reason, request_id)
        handle = self._client.get_workflow_handle(letter.run_id, run_id=letter.execution)
        try:
            task = await _task_of(handle, event_id)
            response = await self._client.workflow_service.reset_workflow_execution(
                ResetWorkflowExecutionRequest(
                    namespace=self._client.namespace,
                    workflow_execution=WorkflowExecution(workflow_id=letter.run_id, run_id=letter.execution or ""),
                    reason=reason,
                    workflow_task_finish_event_id=task,
                    request_id=fields["request_id"],
                )
            )
        except RPCError as error:
            raise _run_error(letter.run_id, error) from error
        done = f"reset to event {task}, as run {response.run_id}"
        answer = await self.discard(letter, **fields | {"reason": f"{done}: {reason}"[:REASON_LIMIT]})
        return answer.model_copy(update={"message": done}) if answer.accepted else answer

    async def send(self, letter: LetterId, command: LetterCommand) -> Answer:
        """Send a command and return the answer. A dead letter that was closed long ago also answers."""
        addressed = command.model_copy(update={"step": letter.step})
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT.total_seconds()):
                answer = None if letter.foreign else await self.ask_run(letter.run_id, addressed)
                while answer is None:
                    with contextlib.suppress(_NotReady):
                        return await self._give(letter, addressed)
                    await asyncio.sleep(RETRY_INTERVAL.total_seconds())
                return answer
        except _NO_ANSWER as error:
            raise Unavailable(
                f"no answer to command {command.request_id!r} ({type(error).__name__}): it may be carried out yet; "
                "give it again with the same request id"
            ) from error

    async def tell(self, letter: LetterId, command: LetterCommand) -> bool:
        """Signal a command to its run, and wait for no answer: the audit log has it when the run has taken the command.

        False if the run has ended or is gone, or is no pipeline run: `send` the command then.
        """
        if letter.foreign:
            return False
        handle = self._client.get_workflow_handle(letter.run_id)
        try:
            await handle.signal(command.verb.value, command.model_copy(update={"step": letter.step}))
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise Unavailable(f"command {command.request_id!r} was not sent: {error.message}") from error
        return True

    async def ask_run(self, run_id: str, command: LetterCommand | Continue) -> Answer | None:
        """Signal a command to its run and return the run's answer; None if the run has ended or is gone.

        The signal is in the run's history when it is sent: whatever crashes then, it is answered and carried out.
        """
        handle = self._client.get_workflow_handle(run_id)
        try:
            while True:
                # Sent again, it gets the same answer: a run whose history was cut short has forgotten the first one.
                reply = await _signalled(handle, command)
                if reply and (reply.answer or not reply.is_open):
                    return reply.answer
                await asyncio.sleep(RETRY_INTERVAL.total_seconds())
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise

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
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT.total_seconds()):
                answer = await self.ask_run(run_id, command)
        except _NO_ANSWER as error:
            raise _run_error(run_id, error) from error
        if answer is None:
            raise RunNotFound(f"no open run has the id {run_id!r}")
        return answer

    async def plan(self, letter: LetterId, *, mode: Mode = Mode.FROM_STEP, from_step: str | None = None) -> Plan:
        """Return what a replay would do, without doing it."""
        if letter.foreign:
            # What comes next is the workflow's own code.
            return Plan(reused=[], run_again=[letter.module], left_for_later=[])
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


async def _signalled(handle: WorkflowHandle[Any, Any], command: LetterCommand | Continue) -> Reply | None:
    """Signal a command, and ask for its answer at the same time, so that one workflow task has both.

    None if there is no answer within some seconds, if ten others ask the run, which is Temporal's limit, or if Temporal
    refused the workflow task that would have answered, for example because a cancellation came with it.
    """
    asking = asyncio.create_task(
        handle.execute_update(Update.ANSWER, command.request_id, id=command.request_id, result_type=Reply)
    )
    # Read, so that asyncio does not report an exception that was never retrieved.
    asking.add_done_callback(lambda task: task.cancelled() or task.exception())
    try:
        await handle.signal(command.verb.value, command)
        # Not awaited itself: when a caller is canceled, Temporal's client would raise an error of its own instead.
        await asyncio.wait({asking}, timeout=SEND_AGAIN.total_seconds())
        return asking.result() if asking.done() else None
    except RPCError as error:
        if error.status in {RPCStatusCode.RESOURCE_EXHAUSTED, RPCStatusCode.FAILED_PRECONDITION}:
            return None
        raise
    finally:
        asking.cancel()


async def _task_of(handle: WorkflowHandle[Any, Any], event_id: int) -> int:
    """Return the workflow task that started an activity or a child."""
    async for event in handle.fetch_history_events():
        if event.event_id == event_id:
            started = (
                event.activity_task_scheduled_event_attributes.workflow_task_completed_event_id
                or event.start_child_workflow_execution_initiated_event_attributes.workflow_task_completed_event_id
            )
            if started:
                return started
    raise InvalidInput(f"event {event_id} of the workflow starts no activity and no child: reset it by hand")


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
