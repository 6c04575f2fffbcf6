"""A run's side of its dead letters: what it reports to them.

By local activities that signal with start: each costs the run no workflow task of its own, and a missing or terminated
dead letter is started, reads its record and continues.
"""

from collections.abc import Sequence
from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from redrive.contracts import Activity, FailedCycle, RunInput, RunState, RunStatus, StepSnapshot
    from redrive.dead_letters import Ending, ExhaustedReport, LetterId, LetterSignal, Outcome
    from redrive.workflows.run_state import later_steps, next_step, step_document

LOCAL_TIMEOUT = timedelta(seconds=10)


class RunLetters:
    """The open dead letters of a run; the run's state says which ones."""

    def __init__(self, run: RunInput, state: RunState) -> None:
        self._run = run
        self._state = state

    def id_of(self, step: str) -> LetterId:
        """Return the id of a step's dead letter."""
        return LetterId(tenant=self._run.tenant, run_id=workflow.info().workflow_id, step=step)

    async def report(self, snapshot: StepSnapshot, cycle: FailedCycle, *, again: bool = False) -> None:
        """Report that a step is exhausted; `again`: that the run still waits there and no command has reached it."""
        info = workflow.info()
        self._state.letters[snapshot.name] = None
        report = ExhaustedReport(
            letter=self.id_of(snapshot.name),
            pipeline=self._run.pipeline,
            snapshot=snapshot,
            cycle=cycle,
            document=step_document(self._run, self._state, snapshot),
            correlation_id=self._run.correlation_id or info.workflow_id,
            key=self._run.key,
            claim=self._run.claim,
            started_at=info.start_time,
            at=workflow.now(),
            again=again,
        )
        await _do(Activity.REPORT_EXHAUSTED, report)

    async def succeeded(self, step: str) -> None:
        """Report to a step's dead letter, if it has one, that the step is done."""
        is_partial = self._state.stop_after == step and next_step(self._state) is not None
        await self._end(step, Ending.SUCCEEDED, RunStatus.PARTIAL if is_partial else None)

    async def canceled(self) -> None:
        """Report to all open ones that the run ends."""
        for step in list(self._state.letters):
            await self._end(step, Ending.CANCELED)

    async def blocked(self, dead: str) -> None:
        """Report to the dead letters of later steps that they now wait for this one."""
        for later in later_steps(self._state, dead):
            if later.name in self._state.letters:
                request_id = self._state.letters[later.name]
                await self._tell(later.name, Outcome(ending=Ending.BLOCKED, request_id=request_id, blocked_by=dead))
                # Its outcome now depends on a command to the earlier one.
                self._state.letters[later.name] = None

    async def signal(self, step: str, name: str, arguments: Sequence[object]) -> None:
        """Signal the dead letter of a step."""
        await _do(Activity.SIGNAL_LETTER, self.id_of(step), name, arguments[0] if len(arguments) == 1 else None)

    async def _end(self, step: str, ending: Ending, run_status: RunStatus | None = None) -> None:
        if step in self._state.letters:
            request_id = self._state.letters[step]
            await self._tell(step, Outcome(ending=ending, request_id=request_id, run_status=run_status))
            del self._state.letters[step]

    async def _tell(self, step: str, outcome: Outcome) -> None:
        await self.signal(step, LetterSignal.OUTCOME, [outcome])


async def _do(activity: Activity, *arguments: object) -> None:
    await workflow.execute_local_activity(activity, args=arguments, start_to_close_timeout=LOCAL_TIMEOUT)
