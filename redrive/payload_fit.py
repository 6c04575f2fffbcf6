"""Whether a payload fits a pipeline: the same check, in the same words, with the modules' code and without it. Pure."""

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from redrive.documents import validation_sentence
from redrive.errors import InvalidInput, UnknownPipeline


@dataclass(frozen=True)
class StepShape:
    """What the check needs of a step."""

    name: str
    required: Sequence[Sequence[str]]
    """Of each required field, the names that may carry it; the field's own comes first."""
    validate: Callable[[dict[str, Any]], object]
    """Check the step input in a run's document. Raises pydantic's ValidationError."""


def check_fits(steps: Sequence[StepShape], payload: dict[str, Any]) -> None:
    """Refuse a payload with which a step could never start."""
    for taken in sorted({step.name for step in steps} & payload.keys()):
        raise InvalidInput(f"payload.{taken}: the name belongs to a step, whose output stands there; rename the field")
    first = steps[0]
    try:
        first.validate(payload)
    except ValidationError as error:
        raise InvalidInput(f"payload does not fit {first.name!r}: {validation_sentence(error)}") from error
    available = set(payload)
    for earlier, step in itertools.pairwise(steps):
        available.add(earlier.name)
        _check_later_step(step, available)


def _check_later_step(step: StepShape, available: Collection[str]) -> None:
    for names in step.required:
        if not any(name in available for name in names):
            raise InvalidInput(f"payload.{names[0]}: missing; step {step.name!r} needs it")


def unknown_pipeline(name: str, known: Iterable[str]) -> UnknownPipeline:
    """Refuse the name of a pipeline, with those that exist."""
    names = ", ".join(sorted(known)) or "none"
    return UnknownPipeline(f"pipeline {name!r} is not known here; known: {names}")
