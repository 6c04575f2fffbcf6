"""Trying again outside workflows."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture
from structlog.typing import EventDict

from redrive.categories import Category
from redrive.classify import Classification
from redrive.errors import ServiceError, Terminal, Transient
from redrive.logs import Log
from redrive.policy import Curve, NoJitter, RetryPolicy
from redrive.retry import RetryAttempt, with_retry

MILLISECOND = timedelta(milliseconds=1)
QUICK = RetryPolicy(
    base=10 * MILLISECOND,
    cap=40 * MILLISECOND,
    jitter=NoJitter(),
    max_attempts=3,
    timeout=timedelta(seconds=5),
    unknown="retry",
)


def policy(**changes: Any) -> RetryPolicy:
    """The quick policy, changed."""
    return QUICK.model_copy(update=changes)


class Flaky:
    """Raises what it was given, one error a call, and then answers."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.seen: list[RetryAttempt] = []
        self.times: list[float] = []

    async def __call__(self, attempt: RetryAttempt) -> str:
        self.seen.append(attempt)
        self.times.append(time.monotonic())
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    @property
    def waits(self) -> list[float]:
        """Seconds between the calls."""
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]


def capture() -> tuple[Log, list[EventDict]]:
    """A logger, and what it was told."""
    sink = LogCapture()
    log: Log = structlog.wrap_logger(None, processors=[sink], wrapper_class=structlog.stdlib.BoundLogger)
    return log, sink.entries


async def test_transient_errors_are_tried_again_with_the_same_key() -> None:
    """A call that heals gives its answer, and every try had the same key."""
    flaky = Flaky(TimeoutError(), ConnectionResetError())
    assert await with_retry("charge", flaky, policy=QUICK, key="order-1") == "done"
    assert [(seen.attempt, seen.idempotency_key) for seen in flaky.seen] == [(n, "order-1") for n in (1, 2, 3)]
    assert all(seen.deadline - datetime.now(UTC) <= QUICK.timeout for seen in flaky.seen)


async def test_waits_follow_the_curve() -> None:
    """The waits are those of the policy: 10 ms, 20 ms, then the cap of 40 ms."""
    flaky = Flaky(*[ConnectionResetError()] * 4)
    await with_retry("charge", flaky, policy=policy(max_attempts=5))
    for wait, least in zip(flaky.waits, [0.01, 0.02, 0.04, 0.04], strict=True):
        assert least <= wait < least + 1


async def test_last_error_is_raised_as_it_is() -> None:
    """When the budget is used up, the caller sees the very error of the last try."""
    errors = [ConnectionResetError(str(number)) for number in range(3)]
    with pytest.raises(ConnectionResetError) as caught:
        await with_retry("charge", Flaky(*errors), policy=QUICK)
    assert caught.value is errors[2]


@pytest.mark.parametrize(
    "error", [Terminal("no"), ServiceError("no", category=Category.PROVIDER_4XX, status=404), UnicodeError()]
)
async def test_terminal_error_is_tried_once(error: Exception) -> None:
    """An error that cannot heal ends the tries at once."""
    flaky = Flaky(error, error)
    with pytest.raises(type(error)):
        await with_retry("charge", flaky, policy=QUICK)
    assert len(flaky.seen) == 1


async def test_unknown_error_goes_by_the_policy() -> None:
    """The policy decides whether an error that no rule knows is tried again."""
    assert await with_retry("charge", Flaky(RuntimeError()), policy=QUICK) == "done"
    with pytest.raises(RuntimeError):
        await with_retry("charge", Flaky(RuntimeError()), policy=policy(unknown="terminal"))


async def test_retry_after_is_obeyed_up_to_its_cap() -> None:
    """A service's wish wins over the curve, until the cap."""
    flaky = Flaky(Transient("a", retry_after=80 * MILLISECOND), Transient("b", retry_after=timedelta(hours=1)))
    await with_retry("charge", flaky, policy=policy(retry_after_cap=120 * MILLISECOND))
    assert 0.08 <= flaky.waits[0] < 1
    assert 0.12 <= flaky.waits[1] < 1


async def test_category_has_its_own_budget() -> None:
    """A category's own curve decides on waits and number of tries for its errors."""
    own = Curve(base=MILLISECOND, cap=MILLISECOND, max_attempts=6)
    busy = ServiceError("busy", category=Category.RATE_LIMIT, status=429)
    flaky = Flaky(*[busy] * 5)
    assert await with_retry("charge", flaky, policy=policy(per_category={Category.RATE_LIMIT: own})) == "done"
    assert len(flaky.seen) == 6


async def test_timeout_really_cancels_the_try() -> None:
    """A try that hangs is cancelled at its timeout, and the next one runs."""
    cancelled: list[int] = []

    async def hang_once(attempt: RetryAttempt) -> str:
        if attempt.attempt == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(attempt.attempt)
                raise
        return "done"

    assert await with_retry("charge", hang_once, policy=policy(timeout=50 * MILLISECOND)) == "done"
    assert cancelled == [1]


async def test_timeout_says_which_operation_was_stopped() -> None:
    """The error of a hanging call names the operation, the attempt and the time."""
    with pytest.raises(TimeoutError, match=r"charge: attempt 1 was stopped after 0\.02 s"):
        await with_retry("charge", lambda _: asyncio.sleep(60), policy=policy(timeout=20 * MILLISECOND, max_attempts=1))


async def test_deadline_bounds_all_tries_together() -> None:
    """No wait is begun that would pass the deadline, and a hanging last try is cut at it."""
    started = time.monotonic()
    flaky = Flaky(*[ConnectionResetError()] * 100)
    with pytest.raises(ConnectionResetError):
        await with_retry("charge", flaky, policy=policy(max_attempts=100, deadline=100 * MILLISECOND))
    with pytest.raises(TimeoutError):
        await with_retry("charge", lambda _: asyncio.sleep(60), policy=policy(deadline=100 * MILLISECOND))
    assert time.monotonic() - started < 30
    assert len(flaky.seen) <= 4


async def _in_the_call(_attempt: RetryAttempt) -> str:
    await asyncio.sleep(60)
    return "never"


async def _in_the_wait(_attempt: RetryAttempt) -> str:
    raise ConnectionResetError


@pytest.mark.parametrize("fn", [_in_the_call, _in_the_wait])
async def test_cancellation_goes_through(fn: Callable[[RetryAttempt], Awaitable[str]]) -> None:
    """A cancelled caller stops at once, in a call as in a wait."""
    slow = policy(base=timedelta(seconds=60), cap=timedelta(seconds=60), timeout=timedelta(seconds=60))
    task = asyncio.create_task(with_retry("charge", fn, policy=slow))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class Stop(BaseException):
    """An order to stop, not an error."""


async def test_command_to_stop_is_not_tried_again() -> None:
    """Only errors are tried again: what is no Exception goes through at once."""
    flaky = Flaky(Stop())
    with pytest.raises(Stop):
        await with_retry("charge", flaky, policy=QUICK)
    assert len(flaky.seen) == 1


async def test_own_classifier_decides() -> None:
    """A caller's classifier replaces ours."""
    flaky = Flaky(ConnectionResetError())
    with pytest.raises(ConnectionResetError):
        await with_retry(
            "charge", flaky, policy=QUICK, classify=lambda *_: Classification(Category.NETWORK, retryable=False)
        )


async def test_each_outcome_is_logged_with_its_facts() -> None:
    """Retrying, failing and succeeding are events with the fields of every log line."""
    log, entries = capture()
    await with_retry("charge", Flaky(TimeoutError("slow")), policy=QUICK, key="k", log=log)
    with pytest.raises(Terminal):
        await with_retry("refund", Flaky(Terminal("no")), policy=QUICK, log=log)
    retrying, succeeded, failed = entries
    assert retrying.pop("latency_ms") >= 0
    assert retrying == {
        "event": "call.retrying",
        "log_level": "warning",
        "operation": "charge",
        "idempotency_key": "k",
        "attempt": 1,
        "max_attempts": 3,
        "category": "timeout",
        "retryable": True,
        "http_status": None,
        "error_type": "TimeoutError",
        "error": "slow",
        "delay_ms": 10.0,
    }
    assert (succeeded["event"], succeeded["attempt"], succeeded["log_level"]) == ("call.succeeded", 2, "debug")
    assert (failed["event"], failed["operation"], failed["retryable"]) == ("call.failed", "refund", False)
