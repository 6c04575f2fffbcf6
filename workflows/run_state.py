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
    return state.steps[_place(state, name) + 1 :]


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
    place = _place(state, first)
    state.letters[dead.name] = command.request_id
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


def misfit(
    state: RunState, steps: list[StepSnapshot], command: LetterCommand, dead: StepState, input_size: int
) -> str | None:
    """Say why a command cannot be carried out at the dead step, or None. Carrying it out would break the run."""
    match command:
        case Replay():
            return _replay_misfit(state, steps, command, dead)
        case Resolve():
            total = input_size + sum(each.output_size or 0 for each in state.steps) + json_size(command.output)
            return f"its output makes the run's document {total} bytes" if total > DOCUMENT_LIMIT else None
        case Discard() | Restart():
            return None


def _replay_misfit(state: RunState, steps: list[StepSnapshot], command: Replay, dead: StepState) -> str | None:
    first = command.from_step or dead.name
    allowed = [step.name for step in state.steps[: _place(state, dead.name) + 1]]
    if first not in allowed:
        return f"from_step {first!r} is not one of the steps up to the dead one"
    if command.input_patch is not None and json_size(command.input_patch) > PAYLOAD_LIMIT:
        return "its input_patch is too large"
    try:
        RetryPolicy.model_validate(steps[_place(state, first)].policy.model_dump() | (command.policy or {}))
    except ValidationError as error:
        return f"policy: {validation_sentence(error)}"
    return None


def skip_rest(state: RunState, now: datetime) -> None:
    """Mark the steps that will no longer run, and end the running one."""
    for step in state.steps:
        if step.status is StepStatus.RUNNING:
            step.finished_at = now
        if step.status in {StepStatus.PENDING, StepStatus.RUNNING, StepStatus.DLQ}:
            step.status = StepStatus.SKIPPED


def _place(state: RunState, name: str) -> int:
    return [step.name for step in state.steps].index(name)


def count_edit(versions: dict[str, int], steps: Sequence[StepSnapshot] | None, edited: str) -> None:
    """Count an edit for the step and for every later one that reads what may now differ."""
    changed = {edited}
    names = [step.name for step in steps or []]
    for step in (steps or [])[names.index(edited) :] if edited in names else []:
        if step.name == edited or step.reads is None or changed & set(step.reads):
            changed.add(step.name)
            versions[step.name] = versions.get(step.name, 0) + 1
