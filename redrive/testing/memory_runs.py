"""Runs in memory: the rules of the product without its servers, and without waiting."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Unpack

from redrive.activities.attempts import failure_message, plain_result, redacted_text, validated_input
from redrive.activities.commands import CommandChecks
from redrive.classify import classify
from redrive.contracts import (
    Attempt,
    FailedCycle,
    RunInput,
    RunState,
    RunStatus,
    RunView,
    StepState,
    StepStatus,
)
from redrive.dead_letters import (
    Command,
    CommandRequest,
    Continue,
    Discard,
    LetterCommand,
    LetterId,
    Replay,
    Resolve,
    RunDocument,
)
from redrive.documents import json_size
from redrive.errors import CommandRefused
from redrive.keys import step_key
from redrive.modules import MemoryCounters, Module, Pipeline, Registry
from redrive.redaction.redactor import Redactor
from redrive.resources import Resource
from redrive.retry import next_delay
from redrive.testing.contexts import Clock, new_context
from redrive.testing.faults import Faults
from redrive.testing.runs import Payload, Run, StartOptions, run_input
from redrive.testing.services import FakeServices, UnexpectedCall
from redrive.workflows.run_state import (
    begin_cycle,
    exhaust,
    next_step,
    parked_step,
    place_of,
    refusal,
    send_back,
    skip_rest,
    step_document,
    too_large,
)

# The middle of every jitter: the same delays in every test.
_DRAW: Final = 0.5


class RunOptions(StartOptions, total=False):
    """What a run in memory may be given: what a start gives, and its outside world."""

    services: FakeServices
    faults: Faults
    clock: Clock
    resources: Mapping[Resource[Any], Any]


async def run_module(module: Module[Any, Any], payload: Payload, **options: Unpack[RunOptions]) -> Run:
    """Run a module as the only step of a run: see `run_pipeline`."""
    return await _run("test", [module], payload, options)


async def run_pipeline(pipeline: Pipeline, payload: Payload, **options: Unpack[RunOptions]) -> Run:
    """Run a pipeline until it ends or is parked, in memory and without waiting.

    `services` answers calls, `faults` makes steps fail, `resources` are values by resource, `clock` is moved by the
    delays between attempts. `run_id`, `tenant`, `user_id`, `correlation_id` and `labels` are what a start gives.
    """
    return await _run(pipeline.name, pipeline.modules, payload, options)


async def _run(pipeline: str, modules: Sequence[Module[Any, Any]], payload: Payload, options: RunOptions) -> Run:
    unknown = sorted(options.keys() - RunOptions.__optional_keys__)
    if unknown:
        raise TypeError(
            f"unexpected option {unknown[0]!r}; there are {', '.join(sorted(RunOptions.__optional_keys__))}"
        )
    given = run_input(pipeline, modules, payload, options)
    given.steps = [module.snapshot() for module in modules]
    run = MemoryRun(given, modules, options)
    await run.advance()
    return run


class MemoryRun(Run):
    """A run without servers."""

    def __init__(self, given: RunInput, modules: Sequence[Module[Any, Any]], options: RunOptions) -> None:
        self._input = given
        self._services = options.get("services") or FakeServices()
        self._clock = clock = options.get("clock") or Clock()
        self._resources = options.get("resources") or {}
        faults, run_id = options.get("faults") or Faults(), options.get("run_id", "test-run")
        self._modules = faults.applied(modules)
        self._snapshots = {step.name: step for step in given.steps or []}
        self._redactor = Redactor()
        self._checks = CommandChecks(Registry(modules=self._modules), self._redactor)
        self._counters = MemoryCounters()
        self._stored: dict[str, Any] = {}
        self._size = json_size(given.model_dump(mode="json"))
        steps = [StepState(name=name, max_attempts=step.policy.max_attempts) for name, step in self._snapshots.items()]
        self._state = RunState(steps=steps)
        self.outputs = self._state.outputs
        self.failures = {}
        self.view = RunView(
            run_id=run_id,
            tenant=given.tenant,
            pipeline=given.pipeline,
            status=RunStatus.RUNNING,
            correlation_id=given.correlation_id or run_id,
            labels=given.labels,
            steps=steps,
            started_at=clock.now,
        )

    async def advance(self) -> None:
        """Run steps until the run ends, is parked or waits for `continue`."""
        self._now(RunStatus.RUNNING)
        while (place := next_step(self._state)) is not None:
            step = self._state.steps[place]
            await self._run_step(step)
            if step.failure:
                self._state.stop_after = None
                self.failures[step.name] = step.failure
                problem = f"step {step.name!r} failed ({step.failure.category}): {step.failure.message}"
                return self._now(RunStatus.DLQ_PENDING, problem)
            if self._state.stop_after == step.name and next_step(self._state) is not None:
                return self._now(RunStatus.PARTIAL)
        return self._now(RunStatus.SUCCESS)

    def _now(self, status: RunStatus, error: str | None = None) -> None:
        self.view.status, self.view.error = status, error

    async def _run_step(self, step: StepState) -> None:
        """Attempt a step until it succeeds or is exhausted."""
        begin_cycle(step, self._clock.now)
        policy = self._state.policies.pop(step.name, self._snapshots[step.name].policy)
        cycle_end = self._clock.now + policy.deadline if policy.deadline else None
        step.attempts, step.attempt = [], 0
        while True:
            step.attempt += 1
            left = None if cycle_end is None else cycle_end - self._clock.now
            time_left = policy.timeout if left is None else min(policy.timeout, left)
            try:
                output = await self._attempt(step, time_left)
            except (UnexpectedCall, KeyboardInterrupt):
                raise
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError) and _is_ending():
                    raise
                found = classify(error, policy)
                delay = next_delay(found, step.attempt, policy, left, _DRAW)
                module = self._modules[step.name]
                message = failure_message(error, found, policy, time_left, module=module, redactor=self._redactor)
                entry = Attempt(
                    attempt=step.attempt,
                    at=self._clock.now,
                    category=found.category,
                    error_type=type(error).__name__,
                    error=redacted_text(message, self._redactor),
                    delay=delay,
                )
                step.attempts.append(entry)
                if delay is None:
                    return self._exhaust(step, entry)
                self._clock.advance(delay)
            else:
                return self._succeed(step, output)

    def _exhaust(self, step: StepState, last: Attempt) -> None:
        step.finished_at = self._clock.now
        cycle = FailedCycle(
            step=step.name,
            cycle=step.cycle,
            category=last.category,
            error_type=last.error_type,
            message=last.error,
            attempts=step.attempts,
        )
        exhaust(step, cycle)

    def _succeed(self, step: StepState, output: Any) -> None:
        step.finished_at, step.output_size = self._clock.now, json_size(output)
        problem = too_large(self._state, self._size, step)
        if problem:
            return exhaust(step, problem)
        self._state.outputs[step.name] = output
        step.status = StepStatus.SUCCESS
        return None

    async def _attempt(self, step: StepState, time_left: timedelta) -> Any:
        """Call the module once, as a worker does, and return its output as JSON."""
        module = self._modules[step.name]
        version = self._state.versions.get(step.name, 0)
        document = step_document(self._input, self._state, self._snapshots[step.name])
        given = validated_input(module, document, self._redactor)
        if time_left <= timedelta(0):
            raise TimeoutError
        key = step_key(self.run_id, step.name, "run", version)
        if key in self._stored:
            return self._stored[key]
        context = new_context(
            module,
            self._services,
            attempt=step.attempt,
            clock=self._clock,
            time_left=time_left,
            run_id=self.run_id,
            pipeline=self._input.pipeline,
            tenant=self._input.tenant,
            user_id=self._input.user_id,
            correlation_id=self._input.correlation_id,
            version=version,
            labels=self._input.labels,
            counters=self._counters,
            resources=self._resources,
        )
        try:
            async with asyncio.timeout(time_left.total_seconds()):
                output = plain_result(module, await module(context, given))
        finally:
            # A module may have caught it.
            self._services.assert_expected()
        if module.dedupe:
            self._stored[key] = output
        return output

    async def _send(self, command: Command) -> None:
        if isinstance(command, Continue):
            if self.status is not RunStatus.PARTIAL:
                raise CommandRefused(f"the run is {self.status}: only a PARTIAL run can continue")
            self._state.stop_after = None
            return await self.advance()
        parked = parked_step(self._state)
        if parked is None or self.status.closed:
            raise CommandRefused(f"the run is {self.status}: there is nothing to {command.verb}")
        self._carry_out(self._accepted(command, parked), self._state.steps[place_of(self._state, parked)])
        return None if isinstance(command, Discard) else await self.advance()

    def _accepted(self, command: LetterCommand, parked: str) -> LetterCommand:
        """Return a command as it is carried out, or raise why it is refused."""
        steps = self._input.steps or []
        run = RunDocument(run=self._input.model_copy(update={"state": self._state}), parked_at=parked)
        request = CommandRequest(
            letter=LetterId(tenant=self._input.tenant, run_id=self.run_id, step=parked),
            command=command,
            cycle=1,
            revision=1,
            steps=list(self._snapshots),
            run=run,
        )
        problem = refusal(self._state, steps, command, parked, self._size) or self._checks.problem(request)
        if problem:
            raise CommandRefused(problem)
        return self._checks.completed(parked, command)

    def _carry_out(self, command: LetterCommand, step: StepState) -> None:
        match command:
            case Replay():
                send_back(self._state, self._input.steps or [], command, step)
            case Resolve():
                self._state.outputs[step.name], step.output_size = command.output, json_size(command.output)
                step.status, step.failure = StepStatus.SUCCESS, None
            case Discard():
                step.status = StepStatus.FAILED
                skip_rest(self._state, self._clock.now)
                problem = f"step {step.name!r} discarded by {command.requested_by}: {command.reason}"
                self._now(RunStatus.FAILED, problem)


def _is_ending() -> bool:
    """Distinguish a cancellation of the test from one that the module caused itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
