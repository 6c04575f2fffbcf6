"""One bulk operation: fixes its dead letters, then sends their commands leg by leg until all have ended.

The outcome of each item is in Postgres; the workflow decides when to continue, wait, stop and end.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from redrive.bulk import (
        BulkAnswer,
        BulkBegin,
        BulkControl,
        BulkControlInput,
        BulkControlRequest,
        BulkProgress,
        BulkStart,
        BulkStatus,
        other_command,
        stop_reason,
    )
    from redrive.contracts import Activity, Workflow
    from redrive.errors import BulkNotFound
    from redrive.workflows.details import bulk_details
    from redrive.workflows.inputs import NOTHING, read_input, read_message

RECORD_TIMEOUT = timedelta(seconds=10)
# Storing a hundred thousand items is one statement, but not a small one.
OPEN_TIMEOUT = timedelta(minutes=2)
# A leg takes 20 s, plus the time of the commands on their way: 15 s.
LEG_TIMEOUT = timedelta(minutes=2)
HEARTBEAT_TIMEOUT = timedelta(seconds=10)
RETRIES = RetryPolicy(maximum_interval=timedelta(seconds=20))
SYSTEM = "redrive"


@workflow.defn(name=Workflow.BULK_REPLAY)
class BulkReplay:
    """Send one command to many dead letters."""

    def __init__(self) -> None:
        self._opened: BulkAnswer | None = None
        self._status = BulkStatus.RUNNING

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> BulkProgress:
        self._start = start = read_input(BulkStart, raw)
        # Also after continue-as-new: then it only reports the operation's status.
        self._opened = await self._do(Activity.OPEN_BULK, start, returns=BulkAnswer, timeout=OPEN_TIMEOUT)
        if not self._opened.accepted:
            await workflow.wait_condition(workflow.all_handlers_finished)
            raise ApplicationError(self._opened.message, type=self._opened.code, non_retryable=True)
        self._status = self._opened.status or self._status
        try:
            return await self._work()
        except BaseException as error:
            if is_cancelled_exception(error):
                await self._stop("its workflow was canceled")
                await self._work()
            raise

    async def _work(self) -> BulkProgress:
        """Continue until every item has ended."""
        while True:
            progress = await self._leg()
            workflow.set_current_details(bulk_details(self._start, progress))
            why = stop_reason(progress, self._start.command)
            if why:
                await self._stop(why)
            elif progress.finished:
                break
            elif progress.idle:
                await workflow.wait_condition(lambda: self._status is not BulkStatus.PAUSED)
            if workflow.info().is_continue_as_new_suggested():
                await workflow.wait_condition(workflow.all_handlers_finished)
                workflow.continue_as_new(self._start)
        ended: BulkProgress = await self._do(Activity.FINISH_BULK, self._start, returns=BulkProgress)
        self._status = ended.status
        workflow.set_current_details(bulk_details(self._start, ended))
        await workflow.wait_condition(workflow.all_handlers_finished)
        return ended

    async def _leg(self) -> BulkProgress:
        progress: BulkProgress = await self._do(
            Activity.ADVANCE_BULK,
            self._start,
            returns=BulkProgress,
            timeout=LEG_TIMEOUT,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
        )
        return progress

    async def _stop(self, why: str) -> None:
        await self._control(BulkControl.STOP, BulkControlInput(requested_by=SYSTEM, reason=why))

    # Abandoned only by an operation that could not read its input: any other one waits for them.
    @workflow.signal(dynamic=True, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def take(self, name: str, arguments: Sequence[RawValue]) -> None:
        """Take a command, for example from Temporal's Web UI."""
        answer = await self._take(name, arguments)
        if not answer.accepted:
            workflow.logger.warning("bulk.signal_refused: %s", answer.message)

    @workflow.update(dynamic=True, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def take_and_answer(self, name: str, arguments: Sequence[RawValue]) -> BulkAnswer:
        """Take a command and return its outcome; `start` only asks whether the bulk operation begins."""
        return await self._take(name, arguments)

    async def _take(self, name: str, arguments: Sequence[RawValue]) -> BulkAnswer:
        await workflow.wait_condition(lambda: self._opened is not None)
        if self._opened is None or not self._opened.accepted:
            return self._opened or self._refused("it has not begun yet")
        if name not in set(BulkControl):
            return self._refused(f"{name[:64]!r} is not a command; there are pause, resume and stop")
        if name == BulkControl.START:
            return self._begun(self._opened, read_message(BulkBegin, arguments))
        command = read_message(BulkControlInput, arguments)
        if isinstance(command, str):
            return self._refused(command)
        if command.tenant not in {None, self._start.command.tenant}:
            return self._refused(f"tenant {command.tenant!r} has no such bulk operation", code=BulkNotFound.code)
        return await self._control(BulkControl(name), command)

    def _begun(self, opened: BulkAnswer, asked: BulkBegin | str) -> BulkAnswer:
        if isinstance(asked, str):
            return self._refused(asked)
        is_this = asked.action_hash == self._start.command.action_hash
        return opened if is_this else self._refused(other_command(self._start.request_id))

    async def _control(self, control: BulkControl, command: BulkControlInput) -> BulkAnswer:
        given = BulkControlRequest(
            tenant=self._start.command.tenant, bulk_id=self._start.bulk_id, control=control, command=command
        )
        answer: BulkAnswer = await self._do(Activity.CONTROL_BULK, given, returns=BulkAnswer)
        self._status = answer.status or self._status
        return answer

    def _refused(self, message: str, code: str | None = None) -> BulkAnswer:
        return BulkAnswer(bulk_id=self._start.bulk_id, accepted=False, message=message, code=code)

    async def _do(
        self,
        activity: Activity,
        given: object,
        *,
        returns: type,
        timeout: timedelta = RECORD_TIMEOUT,
        heartbeat_timeout: timedelta | None = None,
    ) -> Any:
        return await workflow.execute_activity(
            activity,
            given,
            result_type=returns,
            start_to_close_timeout=timeout,
            heartbeat_timeout=heartbeat_timeout,
            retry_policy=RETRIES,
        )
