"""Records in memory: what runs on a test's server leave behind, in place of PostgreSQL."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from temporalio import activity

from redrive.activities.commands import CommandChecks
from redrive.contracts import Activity, Attempt, FailedCycle, RunEnd, StepInput
from redrive.dead_letters import (
    Answer,
    CommandRecorded,
    CommandRequest,
    Continue,
    ExhaustedReport,
    LetterId,
    MalformedCommand,
    Outcome,
    status_after,
)
from redrive.modules import MemoryCounters, Registry
from redrive.redaction.redactor import Redactor
from redrive.store.runs import Execution


@dataclass
class MemoryRecords:
    """The records of steps: counters, stored results, failed attempts."""

    attempts: dict[tuple[str, str, int], list[Attempt]] = field(default_factory=dict)
    _results: dict[tuple[str, str], Any] = field(default_factory=dict)
    _counters: dict[tuple[str, str], MemoryCounters] = field(default_factory=dict)

    def counters(self, given: StepInput) -> MemoryCounters:
        """Return the counters of a step's run."""
        return self._counters.setdefault((given.tenant, given.scope), MemoryCounters())

    async def once(self, execution: Execution, run: Callable[[], Awaitable[Any]]) -> Any:
        """Return the stored result of a step, or run it and store what it returns."""
        place = execution.tenant, execution.key
        if place not in self._results:
            self._results[place] = await run()
        return self._results[place]

    async def retried(self, given: StepInput, failed: Attempt, delay: timedelta) -> None:  # noqa: ARG002
        """Record that an attempt failed and another follows."""
        self.attempts.setdefault((given.run_id, given.step.name, given.cycle), []).append(failed)

    async def ended(self, given: StepInput, attempt: int) -> None:
        """Record that an attempt has ended the step: there is nothing to clear."""

    async def projected(self, given: StepInput, attempt: int, took: timedelta) -> None:
        """Record that a projector succeeded: a test asks the projector's own store."""


class MemoryLetters:
    """The activities by which runs report their dead letters and have commands recorded."""

    def __init__(self, registry: Registry) -> None:
        self._checks = CommandChecks(registry, Redactor())
        self._answers: dict[str, CommandRecorded] = {}
        self.failures: dict[tuple[str, str], FailedCycle] = {}

    @property
    def functions(self) -> list[Callable[..., Any]]:
        """The functions to register."""
        return [
            self.report_exhausted,
            self.report_outcome,
            self.record_command,
            self.record_continue,
            self.record_refusal,
            self.record_end,
        ]

    @activity.defn(name=Activity.REPORT_EXHAUSTED)
    async def report_exhausted(self, report: ExhaustedReport) -> None:
        """Keep how a step was exhausted."""
        self.failures[report.letter.run_id, report.letter.step] = report.cycle

    @activity.defn(name=Activity.REPORT_OUTCOME)
    async def report_outcome(self, letter: LetterId, outcome: Outcome, end: RunEnd | None) -> None:
        """Take how a dead letter ended: the run's own status says it too."""

    @activity.defn(name=Activity.RECORD_COMMAND)
    async def record_command(self, request: CommandRequest) -> CommandRecorded:
        """Check a command as a worker does. The same one again gets the first answer."""
        command = request.command
        if command.request_id not in self._answers:
            self._answers[command.request_id] = self._judged(request)
        return self._answers[command.request_id]

    def _judged(self, request: CommandRequest) -> CommandRecorded:
        command = request.command
        problem = request.refusal or self._checks.problem(request)
        if problem:
            return CommandRecorded(answer=Answer(request_id=command.request_id, accepted=False, message=problem))
        answer = Answer(request_id=command.request_id, accepted=True, message="", status=status_after(command))
        completed = self._checks.completed(request.letter.step, command)
        return CommandRecorded(answer=answer, command=completed, reads=self._checks.reads(request.steps))

    @activity.defn(name=Activity.RECORD_CONTINUE)
    async def record_continue(self, letter: LetterId, command: Continue, answer: Answer) -> None:
        """Take a `continue`: the run's own status says its outcome."""

    @activity.defn(name=Activity.RECORD_REFUSAL)
    async def record_refusal(self, letter: LetterId, malformed: MalformedCommand) -> None:
        """Take a command that could not be read."""

    @activity.defn(name=Activity.RECORD_END)
    async def record_end(self, end: RunEnd) -> None:
        """Take a run's success: the run's result says it too."""
