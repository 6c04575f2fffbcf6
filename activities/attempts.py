"""The attempts of a step so far. Pure.

They travel from one attempt to the next in Temporal's heartbeat details, so that keeping them costs no database write.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError

from redrive.categories import Category
from redrive.contracts import ATTEMPT_TEXT_LIMIT, ATTEMPTS_KEPT, Attempt

_ATTEMPTS = TypeAdapter(list[Attempt])


def earlier_attempts(
    prior: Sequence[Attempt], heartbeat_details: Sequence[Any], attempt: int, now: datetime
) -> list[Attempt]:
    """Return the failed attempts before this one, with an entry for each that ended without a report."""
    known = {entry.attempt: entry for entry in (*prior, *_reported(heartbeat_details))}
    first_silent = max(known, default=0) + 1
    for number in range(max(first_silent, attempt - ATTEMPTS_KEPT), attempt):
        known[number] = _interrupted(number, now)
    return [known[number] for number in sorted(known)]


def _reported(heartbeat_details: Sequence[Any]) -> list[Attempt]:
    try:
        return _ATTEMPTS.validate_python(heartbeat_details[0]) if heartbeat_details else []
    except ValidationError:
        return []


def _interrupted(number: int, now: datetime) -> Attempt:
    return Attempt(
        attempt=number,
        at=now,
        category=Category.TIMEOUT,
        error_type="Interrupted",
        error="the worker died, was stopped or stopped reporting during this attempt",
    )


def with_attempt(earlier: Sequence[Attempt], entry: Attempt) -> list[Attempt]:
    """Return the attempts with one more, bounded: the first and the latest are kept."""
    entry = entry.model_copy(update={"error": entry.error[:ATTEMPT_TEXT_LIMIT]})
    attempts = [*earlier, entry]
    if len(attempts) > ATTEMPTS_KEPT:
        attempts = [attempts[0], *attempts[-(ATTEMPTS_KEPT - 1) :]]
    return attempts


def to_details(attempts: Sequence[Attempt]) -> list[dict[str, Any]]:
    """Return the attempts as heartbeat details."""
    details: list[dict[str, Any]] = _ATTEMPTS.dump_python(list(attempts), mode="json")
    return details
