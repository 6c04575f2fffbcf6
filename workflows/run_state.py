"""The state of a run's steps, and how operators' commands change it. Pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from redrive.categories import Category
from redrive.contracts import (
    DOCUMENT_LIMIT,
    PAYLOAD_LIMIT,
    FailedCycle,
    RunInput,
    RunState,
    StepSnapshot,
    StepState,
    StepStatus,
)
from redrive.dead_letters import Discard, LetterCommand, Mode, Replay, Resolve, Restart
from redrive.documents import json_size, patched, step_input, validation_sentence
from redrive.policy import RetryPolicy


def next_step(state: RunState) -> int | None:
    """Return the position of the first step that is not done."""
    return next((place for place, step in enumerate(state.steps) if step.status is not StepStatus.SUCCESS), None)


def current_step(state: RunState) -> str:
    """Return the step that a command to the run is for: the current one."""
    place = next_step(state)
    return state.steps[-1 if place is None else place].name


def parked_step(state: RunState) -> str | None:
    """Return the dead step that the run waits at."""
    return next((step.name for step in state.steps if step.status is StepStatus.DLQ), None)


def later_steps(state: RunState, name: str) -> list[StepState]:
    """Return the steps after one."""
    return state.steps[place_of(state, name) + 1 :]


def step_document(run: RunInput, state: RunState, snapshot: StepSnapshot) -> dict[str, Any]:
    """Return the step input: the part of the run's document that it reads, with operators' edits."""
    document = step_input(run.payload | state.outputs, snapshot.reads)
    return patched(document, state.patches.get(snapshot.name, []))


def begin_cycle(step: StepState, now: datetime) -> None:
    """Start a step, or start it again."""
    step.status, step.failure = StepStatus.RUNNING, None
    step.cycle += 1
    step.started_at, step.finished_at = now, None


def exhaust(step: StepState, cycle: FailedCycle) -> None:
    """Mark a step as dead."""
    step.failure, step.attempts = cycle, cycle.attempts
    step.attempt = max([step.attempt, *(entry.attempt for entry in cycle.attempts)])
    step.status = StepStatus.DLQ


def too_large(state: RunState, input_size: int, step: StepState) -> FailedCycle | None:
    """Return the failure of a step whose output no longer fits into the run's document."""
    total = input_size + sum(each.output_size or 0 for each in state.steps)
    if total <= DOCUMENT_LIMIT:
        return None
    message = (
        f"payload and outputs of the run are {total} bytes together; the limit is {DOCUMENT_LIMIT} "
        "(return a reference to large data)"
    )
    return FailedCycle(
        step=step.name,
        cycle=step.cycle,
        category=Category.TOO_LARGE,
        error_type="TooLarge",
        message=message,
        attempts=step.attempts,
    )


def send_back(state: RunState, steps: list[StepSnapshot], command: Replay, dead: StepState) -> None:
    """Make the dead step, or an earlier one and all after it, pending again, as a replay demands."""
    first = command.from_step or dead.name
    place = place_of(state, first)
    state.stop_after = dead.name if command.mode is Mode.STEP_ONLY else None
    if command.input_patch is not None:
        state.patches.setdefault(first, []).append(command.input_patch)
        count_edit(state.versions, steps, first)
    if command.policy is not None:
        policy = steps[place].policy
        state.policies[first] = policy.model_validate(policy.model_dump() | command.policy)
    for step in state.steps[place:]:
        step.status, step.output_size, step.failure = StepStatus.PENDING, None, None
        step.started_at = step.finished_at = None
        state.outputs.pop(step.name, None)


def refusal(
    state: RunState, steps: list[StepSnapshot], command: LetterCommand, step: str, input_size: int
) -> str | None:
    """Say why a run cannot carry out a command at a step, or None. What needs a module's code is checked later."""
    if isinstance(command, Restart):
        return "the run is open: replay it instead"
    if parked_step(state) != step:
        return _elsewhere(state, command, step)
    match command:
        case Replay():
            return _replay_refusal(state, steps, command, step)
        case Resolve():
            total = input_size + sum(each.output_size or 0 for each in state.steps) + json_size(command.output)
            return f"output: it makes the run's document {total} bytes" if total > DOCUMENT_LIMIT else None
        case Discard():
            return None


def _elsewhere(state: RunState, command: LetterCommand, step: str) -> str:
    """Say where the run is, if it does not wait at the step that a command is for."""
    statuses = {each.name: each.status for each in state.steps}
    parked, letter = parked_step(state), state.letters.get(step)
    if step not in statuses:
        return f"step {step!r}: the run has no such step; it has {', '.join(statuses)}"
    if parked:
        return f"the run is parked at {parked!r}: send a command to its dead letter first"
    if letter and letter.command:
        return f"a replay is under way (command {letter.command!r}): wait for its outcome"
    return f"the run is not parked at {step!r}: there is nothing left to {command.verb}"


def _replay_refusal(state: RunState, steps: list[StepSnapshot], command: Replay, dead: str) -> str | None:
    first = command.from_step or dead
    allowed = [step.name for step in state.steps[: place_of(state, dead) + 1]]
    if first not in allowed:
        return f"from_step {first!r}: not one of the steps up to the failed one ({', '.join(allowed)})"
    if first != dead and command.mode is Mode.STEP_ONLY:
        return f"from_step {first!r}: a STEP_ONLY replay runs the failed step {dead!r} alone"
    if command.input_patch is not None and json_size(command.input_patch) > PAYLOAD_LIMIT:
        return f"input_patch: {json_size(command.input_patch)} bytes; the limit is {PAYLOAD_LIMIT}"
    try:
        RetryPolicy.model_validate(steps[place_of(state, first)].policy.model_dump() | (command.policy or {}))
    except ValidationError as error:
        return f"policy: {validation_sentence(error)}"
    return None


def next_revision(state: RunState, now: datetime) -> int:
    """Return the number of the run's next report."""
    state.revision = newer_revision(state.revision, now)
    return state.revision


def newer_revision(last: int, now: datetime) -> int:
    """Return the number of a report: larger than all before, also after a reset to an older history."""
    return max(last + 1, int(now.timestamp() * 1_000_000))


def skip_rest(state: RunState, now: datetime) -> None:
    """Mark the steps that will no longer run, and end the running one."""
    for step in state.steps:
        if step.status is StepStatus.RUNNING:
            step.finished_at = now
        if step.status in {StepStatus.PENDING, StepStatus.RUNNING, StepStatus.DLQ}:
            step.status = StepStatus.SKIPPED


def place_of(state: RunState, name: str) -> int:
    """Return the position of a step."""
    return [step.name for step in state.steps].index(name)


def count_edit(versions: dict[str, int], steps: Sequence[StepSnapshot] | None, edited: str) -> None:
    """Count an edit for the step and for every later one that reads what may now differ."""
    changed = {edited}
    names = [step.name for step in steps or []]
    for step in (steps or [])[names.index(edited) :] if edited in names else []:
        if step.name == edited or step.reads is None or changed & set(step.reads):
            changed.add(step.name)
            versions[step.name] = versions.get(step.name, 0) + 1
