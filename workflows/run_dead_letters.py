"""A run's side of its dead letters: what it reports about them, and the commands that it has recorded.

By local activities: each costs the run no workflow task of its own.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from redrive.contracts import Activity, FailedCycle, OpenLetter, RunEnd, RunInput, RunState, RunStatus, StepStatus
    from redrive.dead_letters import (
        CommandRecorded,
        CommandRequest,
        Ending,
        ExhaustedReport,
        LetterCommand,
        LetterId,
        Outcome,
        RunDocument,
        needs_document,
    )
    from redrive.workflows.records import is_behind, until_current, work_with_record
    from redrive.workflows.run_state import later_steps, next_revision, next_step, step_document

LOCAL_TIMEOUT = timedelta(seconds=10)


class RunLetters:
    """The open dead letters of a run; the run's state says which ones."""

    def __init__(self, run: RunInput, state: RunState) -> None:
        self._run = run
        self._state = state

    def id_of(self, step: str) -> LetterId:
        """Return the id of a step's dead letter."""
        return LetterId(tenant=self._run.tenant, run_id=workflow.info().workflow_id, step=step)

    async def report(self, step: str, cycle: FailedCycle, *, again: bool = False) -> None:
        """Report that a step is exhausted; `again`: that the run still waits there and no command has reached it."""
        info = workflow.info()
        snapshot = next(each for each in self._run.steps or [] if each.name == step)
        revision = self._next_revision()
        self._state.letters[step] = OpenLetter(revision=revision)
        report = ExhaustedReport(
            letter=self.id_of(step),
            pipeline=self._run.pipeline,
            snapshot=snapshot,
            cycle=cycle,
            document=step_document(self._run, self._state, snapshot),
            correlation_id=self._run.correlation_id or info.workflow_id,
            key=self._run.key,
            claim=self._run.claim,
            labels=self._run.labels,
            started_at=info.start_time,
            at=workflow.now(),
            revision=revision,
            again=again,
        )
        await _do(Activity.REPORT_EXHAUSTED, report)

    async def record(self, command: LetterCommand, step: str, refusal: str | None) -> CommandRecorded:
        """Have a command checked and recorded. A record that is behind is told again where the run is parked."""
        dead = (each for each in self._state.steps if each.name == step and each.status is StepStatus.DLQ)
        failure = next((each.failure for each in dead), None)
        run = RunDocument(run=self._run.model_copy(update={"state": self._state}), parked_at=step)

        async def ask() -> CommandRecorded | None:
            request = CommandRequest(
                letter=self.id_of(step),
                command=command,
                cycle=failure.cycle if failure else 0,
                revision=self._next_revision(),
                refusal=refusal,
                steps=[each.name for each in self._state.steps],
                run=run if refusal is None and needs_document(command) else None,
            )
            return await self._recorded(request, is_parked=failure is not None)

        async def report_again() -> None:
            if failure is not None:
                await self.report(step, failure, again=True)

        return await until_current(ask, report_again)

    async def _recorded(self, request: CommandRequest, *, is_parked: bool) -> CommandRecorded | None:
        """Return the answer to a command; None if the record is behind a run that is parked."""
        try:
            recorded: CommandRecorded = await work_with_record(
                Activity.RECORD_COMMAND, request, returns=CommandRecorded
            )
        except ActivityError as error:
            if is_behind(error) and is_parked:
                return None
            raise
        if recorded.command:
            letter = OpenLetter(revision=request.revision, command=request.command.request_id)
            self._state.letters[request.letter.step] = letter
        return recorded

    async def succeeded(self, step: str) -> None:
        """Report that a step is done, if it has a dead letter."""
        is_partial = self._state.stop_after == step and next_step(self._state) is not None
        await self._end(step, Ending.SUCCEEDED, RunStatus.PARTIAL if is_partial else None)

    async def ended(self, step: str, end: Callable[[], RunEnd]) -> bool:
        """Report that the last step is done, if it has a dead letter, and the run with it.

        Return whether the run's end was taken. Histories say no that are older than the report of both together.
        """
        if step not in self._state.letters:
            return False
        outcome = self._outcome(step, Ending.SUCCEEDED)
        del self._state.letters[step]
        return bool(await _do(Activity.REPORT_OUTCOME, self.id_of(step), outcome, end()))

    async def canceled(self) -> None:
        """Report about all open ones that the run ends."""
        for step in list(self._state.letters):
            await self._end(step, Ending.CANCELED)

    async def blocked(self, dead: str) -> None:
        """Report that the dead letters of later steps now wait for this one."""
        for later in later_steps(self._state, dead):
            if later.name in self._state.letters:
                outcome = await self._tell(later.name, Ending.BLOCKED, blocked_by=dead)
                # Its outcome now depends on a command to the earlier one.
                self._state.letters[later.name] = OpenLetter(revision=outcome.revision or 0)

    async def _end(self, step: str, ending: Ending, run_status: RunStatus | None = None) -> None:
        if step in self._state.letters:
            await self._tell(step, ending, run_status=run_status)
            del self._state.letters[step]

    async def _tell(
        self, step: str, ending: Ending, *, run_status: RunStatus | None = None, blocked_by: str | None = None
    ) -> Outcome:
        outcome = self._outcome(step, ending, run_status=run_status, blocked_by=blocked_by)
        await _do(Activity.REPORT_OUTCOME, self.id_of(step), outcome, None)
        return outcome

    def _outcome(
        self, step: str, ending: Ending, *, run_status: RunStatus | None = None, blocked_by: str | None = None
    ) -> Outcome:
        letter = self._state.letters[step]
        return Outcome(
            ending=ending,
            revision=self._next_revision(),
            after=letter.revision,
            request_id=letter.command,
            run_status=run_status,
            blocked_by=blocked_by,
        )

    def _next_revision(self) -> int:
        return next_revision(self._state, workflow.now())


async def _do(activity: Activity, *arguments: object) -> Any:
    return await workflow.execute_local_activity(activity, args=arguments, start_to_close_timeout=LOCAL_TIMEOUT)
