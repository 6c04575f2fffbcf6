"""Dead letters for the tests of the store: made in the store alone, without Temporal."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from redrive.categories import Category
from redrive.contracts import Attempt, FailedCycle
from redrive.dead_letters import (
    Answer,
    CommandRequest,
    Discard,
    Ending,
    Exhausted,
    LetterCommand,
    LetterId,
    Outcome,
    Replay,
    Resolve,
    status_after,
)
from redrive.policy import STEP

START = datetime(2026, 11, 1, tzinfo=UTC)
# A run numbers its reports; those about the next cycle are newer.
CYCLE = 1_000_000


def new_tenant() -> str:
    """Return a name that no other test has."""
    return f"tenant-{uuid.uuid4().hex[:12]}"


def new_letter(tenant: str, step: str = "charge") -> LetterId:
    """Return the id of a dead letter that is not there yet."""
    return LetterId(tenant=tenant, run_id=f"run-{uuid.uuid4().hex}", step=step)


def exhausted(
    letter: LetterId,
    cycle: int = 1,
    *,
    message: str = "the service is broken",
    category: Category = Category.PROVIDER_5XX,
    pipeline: str = "orders",
    at: datetime = START,
    **changes: Any,
) -> Exhausted:
    """Return the message that a cycle of a letter's step was used up."""
    attempt = Attempt(attempt=1, at=at, category=category, error_type="ServiceError", error=message)
    return Exhausted(
        letter=letter,
        pipeline=pipeline,
        cycle=FailedCycle(
            step=letter.step,
            cycle=cycle,
            category=category,
            error_type="ServiceError",
            message=message,
            stack="Traceback: here",
            attempts=[attempt, attempt.model_copy(update={"attempt": 2, "at": at + timedelta(seconds=2)})],
            build_id="build-1",
        ),
        payload=changes.pop("payload", {"n": 1}),
        config=STEP,
        correlation_id=changes.pop("correlation_id", letter.run_id),
        key=changes.pop("key", None),
        labels=changes.pop("labels", {}),
        started_at=changes.pop("started_at", at - timedelta(minutes=1)),
        at=at,
        revision=cycle * CYCLE,
        **changes,
    )


def replay(request_id: str = "r1", **changes: Any) -> Replay:
    """Return a command to replay."""
    return Replay(request_id=request_id, requested_by="alice", reason="fixed", **changes)


def resolve(request_id: str = "r1") -> Resolve:
    """Return a command to resolve."""
    return Resolve(request_id=request_id, requested_by="bob", reason="done by hand", output={})


def discard(request_id: str = "r1") -> Discard:
    """Return a command to discard."""
    return Discard(request_id=request_id, requested_by="carol", reason="not needed")


def yes(command: LetterCommand) -> Answer:
    """Return the answer that accepts a command."""
    return Answer(request_id=command.request_id, accepted=True, message="the run goes on", status=status_after(command))


def no(command: LetterCommand, why: str = "not now") -> Answer:
    """Return the answer that refuses a command."""
    return Answer(request_id=command.request_id, accepted=False, message=why)


def outcome(
    ending: Ending, request_id: str | None = "r1", blocked_by: str | None = None, revision: int | None = None
) -> Outcome:
    """Return how a replay ended."""
    return Outcome(ending=ending, request_id=request_id, blocked_by=blocked_by, revision=revision)


def given(letter: LetterId, command: LetterCommand, cycle: int = 1, number: int = 1) -> CommandRequest:
    """Return a command as a run that is parked in this cycle has it recorded."""
    return CommandRequest(letter=letter, command=command, cycle=cycle, revision=cycle * CYCLE + number, steps=[])
