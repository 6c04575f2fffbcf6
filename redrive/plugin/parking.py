"""Where one workflow run is parked, and the commands that it carries out there. Deterministic.

Nothing here runs, and nothing is written into the history, until an operation has failed for good.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import CancelledError, FailureError

from redrive.dead_letters import (
    COMMANDS,
    PROBLEM_LIMIT,
    CommandRecorded,
    CommandRequest,
    Continue,
    Discard,
    Ending,
    ForeignPlace,
    ForeignQuery,
    ForeignSignal,
    LetterCommand,
    LetterId,
    Mode,
    Outcome,
    Replay,
    ReplayOptions,
    Resolve,
    Restart,
)
from redrive.plugin import reports
from redrive.plugin.code_lines import awaiting_line, calling_line
from redrive.plugin.operations import Misfit, Operation, causes
from redrive.plugin.options import Options
from redrive.workflows.records import until_current
from redrive.workflows.run_state import newer_revision


@dataclass
class Parked:
    """One operation that waits for a command."""

    operation: Operation
    letter: LetterId
    error: BaseException
    cycle: int = 1
    revision: int = 0
    request_id: str | None = None
    commands: deque[LetterCommand] = field(default_factory=deque)


class Parking:
    """The parked operations of one workflow run."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.is_off = False
        self.main: asyncio.Task[Any] | None = None
        self._count = 0
        self._revision = 0
        self._parked: dict[str, Parked] = {}
        self._discarded: list[BaseException] = []
        self._endings: set[asyncio.Task[Any]] = set()
        # Of each name: True once it has parked in this run, otherwise the failures that did not.
        self._marked: dict[str, int | bool] = {}

    def rescue(self, operation: Operation, error: BaseException) -> Coroutine[Any, Any, Any] | None:
        """Return what waits for an operator in place of a failed operation; None if its error is raised."""
        if self.is_off or not operation.is_unexpected(error):
            return None
        # Somebody has decided already that this error is raised.
        if any(cause in self._discarded for cause in causes(error)):
            return None
        if operation.is_marked and not self._parks(operation, error):
            return None
        return self._hold(self._park(operation, error))

    def _parks(self, operation: Operation, error: BaseException) -> bool:
        """Live, the options decide and history records it. In a history replay, history decides."""
        name = operation.name
        if self._marked.get(name) is True:
            return True
        turn = self._marked.get(name, 0) + 1
        is_taken = self._options.takes(workflow.info().workflow_type, name) and not operation.is_tried_again(error)
        is_asked = workflow.unsafe.is_replaying() or is_taken
        # Temporal remembers the first answer to a mark: after a failure that was raised, the next has another mark.
        mark = f"redrive:{name}" if turn == 1 else f"redrive:{name}:{turn}"
        self._marked[name] = (is_asked and workflow.patched(mark)) or turn
        return self._marked[name] is True

    def _park(self, operation: Operation, error: BaseException) -> Parked:
        info = workflow.info()
        operation.note(error)
        operation.code_line = operation.code_line or calling_line()
        if not self._count:
            workflow.set_signal_handler(ForeignSignal.COMMAND, self._take)
            workflow.set_query_handler(ForeignQuery.PARKED, lambda: sorted(self._parked))
        self._count += 1
        step = ForeignPlace(operation.name, info.run_id, self._count).step
        letter = LetterId(tenant=self._options.tenant_of(info), run_id=info.workflow_id, step=step)
        self._parked[step] = parked = Parked(operation, letter, error)
        return parked

    async def _hold(self, parked: Parked) -> Any:
        """Wait for commands until one ends it: return what the operation returns, or raise what it raises."""
        try:
            await self._report(parked, parked.error)
            while True:
                command = await self._next_command(parked)
                if isinstance(command, Discard):
                    del self._parked[parked.letter.step]
                    self._discarded.append(parked.error)
                    raise parked.error
                try:
                    value = await _carried_out(parked.operation, command)
                except FailureError as error:
                    await self._failed_again(parked, error)
                    continue
                self._end(parked, Ending.SUCCEEDED if isinstance(command, Replay) else None)
                return value
        except workflow.ContinueAsNewError:
            self._end(parked, Ending.SUCCEEDED)
            raise
        except (asyncio.CancelledError, CancelledError):
            self._end(parked, Ending.CANCELED)
            raise parked.operation.canceled(parked.error) from CancelledError("Cancelled while parked")

    async def _report(self, parked: Parked, error: BaseException, *, again: bool = False) -> None:
        parked.revision = self._next_revision()
        if parked.operation.code_line is None and self.main:
            # Within a gather nobody awaits the operation itself: its line is where the workflow's own code waits.
            parked.operation.code_line = awaiting_line(self.main.get_coro())
        await reports.report(
            parked.letter, parked.operation, error, cycle=parked.cycle, revision=parked.revision, again=again
        )

    async def _next_command(self, parked: Parked) -> LetterCommand:
        """Wait for a command that can be carried out, and have it recorded first, with its answer."""
        while True:
            await workflow.wait_condition(lambda: bool(parked.commands))
            given = parked.commands.popleft()
            recorded = await until_current(
                partial(self._recorded, parked, given), partial(self._report, parked, parked.error, again=True)
            )
            if recorded.command:
                return recorded.command

    async def _recorded(self, parked: Parked, given: LetterCommand) -> CommandRecorded | None:
        request = CommandRequest(
            letter=parked.letter,
            command=given,
            cycle=parked.cycle,
            revision=self._next_revision(),
            refusal=_refusal(parked.operation, given),
            steps=[],
        )
        recorded = await reports.record_command(request)
        if recorded and recorded.command:
            parked.revision, parked.request_id = request.revision, given.request_id
        return recorded

    async def _failed_again(self, parked: Parked, error: FailureError) -> None:
        """Open the next cycle, unless the error is one that the code expects."""
        if not parked.operation.is_unexpected(error):
            self._end(parked, Ending.CANCELED)
            raise error
        parked.error = error
        parked.cycle += 1
        await self._report(parked, error)

    def _end(self, parked: Parked, ending: Ending | None) -> None:
        """Report the end of a dead letter, without keeping the workflow's code waiting."""
        if self._parked.pop(parked.letter.step, None) is None or ending is None:
            return
        outcome = Outcome(
            ending=ending, revision=self._next_revision(), after=parked.revision, request_id=parked.request_id
        )
        self._let_arrive(reports.start_outcome(parked.letter, outcome))

    def _let_arrive(self, report: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(report)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    def _next_revision(self) -> int:
        self._revision = newer_revision(self._revision, workflow.now())
        return self._revision

    async def close(self) -> None:
        """Close what is left open when the workflow ends or continues as new, and let all reports arrive."""
        for parked in list(self._parked.values()):
            self._end(parked, Ending.CANCELED)
        while self._endings:
            try:
                await workflow.wait_condition(lambda: not self._endings)
            except asyncio.CancelledError:
                # Requested when the workflow has decided its end: it comes too late.
                continue

    def _take(self, *given: Any) -> None:
        """Take a command. What cannot be read is refused: it must not fail the workflow task."""
        try:
            command = COMMANDS.validate_python(given[0] if given else None)
        except ValidationError as error:
            self._refuse_unreadable(error)
            return
        if isinstance(command, Continue):
            return
        if parked := self._meant(command.step):
            parked.commands.append(command)
        elif command.step:
            self._refuse(command, command.step, "the workflow is not parked there any more")

    def _meant(self, step: str | None) -> Parked | None:
        """Return what a command is for. Whoever signals by hand may name the operation alone, or nothing."""
        for place, parked in self._parked.items():
            if step in {None, place, parked.operation.name}:
                return parked
        return None

    def _refuse_unreadable(self, error: ValidationError) -> None:
        workflow.logger.warning("dead_letter.unreadable_command")
        parked = self._meant(None)
        # In histories of earlier releases it was dropped.
        if parked is None or not workflow.patched("redrive:unreadable"):
            return
        # Nothing of it is certain, not even who sent it.
        command = Replay(request_id=str(workflow.uuid4()), requested_by="unknown", reason="cannot be read")
        self._refuse(command, parked.letter.step, _unreadable(error), parked.cycle)

    def _refuse(self, command: LetterCommand, step: str, refusal: str, cycle: int = 0) -> None:
        """Have it recorded that a command is not carried out."""
        info = workflow.info()
        letter = LetterId(tenant=self._options.tenant_of(info), run_id=info.workflow_id, step=step)
        request = CommandRequest(
            letter=letter, command=command, cycle=cycle, revision=self._next_revision(), refusal=refusal, steps=[]
        )
        self._let_arrive(reports.start_command(request))


def _unreadable(error: ValidationError) -> str:
    """Say what is wrong with a command, without what it holds."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)[:3]
    sentences = [f"{'.'.join(map(str, problem['loc'])) or 'it'}: {problem['msg']}" for problem in problems]
    return f"the command cannot be read: {'; '.join(sentences)}"[:PROBLEM_LIMIT]


async def _carried_out(operation: Operation, command: LetterCommand) -> Any:
    if isinstance(command, Resolve):
        return operation.result(command.output)
    options = command if isinstance(command, Replay) else ReplayOptions()
    return await operation.run_again(options)


def _refusal(operation: Operation, given: LetterCommand) -> str | None:
    """Say why a command cannot be carried out here, or None."""
    try:
        match given:
            case Replay() as command:
                if command.mode is Mode.STEP_ONLY or command.from_step is not None:
                    return "mode and from_step are for pipelines: this workflow's own code decides what comes next"
                operation.check(command)
            case Resolve() as command:
                operation.result(command.output)
            case Restart():
                return "the workflow is open: replay it instead"
    except Misfit as misfit:
        return str(misfit)
    return None
