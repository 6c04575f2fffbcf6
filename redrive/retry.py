"""Retries of calls outside workflows, with the same policy, classifier and log fields as a step.

Inside a step this is not needed: raise, and Temporal waits and retries.

The loop is our own: curve, budgets, classifier and deadlines all come from RetryPolicy, so a retry library would add
only the `while`.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from redrive.classify import Classification, classify
from redrive.logs import Log, get_logger
from redrive.policy import SERVICE_CALL, RetryPolicy

T = TypeVar("T")
Classifier = Callable[[BaseException, RetryPolicy], Classification]


@dataclass(frozen=True)
class RetryAttempt:
    """What an attempt may need: its number, the key shared by all attempts, and its deadline."""

    attempt: int
    idempotency_key: str | None
    deadline: datetime


async def with_retry(
    operation: str,
    fn: Callable[[RetryAttempt], Awaitable[T]],
    *,
    policy: RetryPolicy = SERVICE_CALL,
    key: str | None = None,
    classify: Classifier = classify,
    log: "Log | None" = None,
) -> T:
    """Call `fn` until it succeeds or the policy gives up, then raise its last error unchanged.

    Each attempt is cancelled after `policy.timeout`, and all of them together after `policy.deadline`. `key` is the
    same in every attempt: pass it to the service.
    """
    log = (log or get_logger(__name__)).bind(operation=operation, idempotency_key=key)
    clock = _Clock(policy)
    attempt = 0
    while True:
        attempt += 1
        try:
            result = await _try_once(operation, fn, attempt, key, clock.start_attempt())
        except Exception as error:
            found = classify(error, policy)
            facts = _facts(error, found, attempt, policy) | {"latency_ms": clock.latency_ms}
            delay = next_delay(found, attempt, policy, clock.left)
            if delay is None:
                log.warning("call.failed", **facts)
                raise
            log.warning("call.retrying", **facts, delay_ms=_milliseconds(delay))
        else:
            log.debug("call.succeeded", attempt=attempt, latency_ms=clock.latency_ms)
            return result
        await asyncio.sleep(delay.total_seconds())


class _Clock:
    """How long this attempt and all attempts together have taken."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._started = self._attempt_started = time.monotonic()

    def start_attempt(self) -> timedelta:
        """Begin an attempt and return how long it may take."""
        self._attempt_started = time.monotonic()
        return self._policy.timeout if self.left is None else min(self._policy.timeout, self.left)

    @property
    def left(self) -> timedelta | None:
        """The time left for all attempts, or None without a limit."""
        if self._policy.deadline is None:
            return None
        return max(timedelta(0), self._policy.deadline - timedelta(seconds=time.monotonic() - self._started))

    @property
    def latency_ms(self) -> float:
        return _milliseconds(timedelta(seconds=time.monotonic() - self._attempt_started))


async def _try_once(
    operation: str, fn: Callable[[RetryAttempt], Awaitable[T]], attempt: int, key: str | None, timeout: timedelta
) -> T:
    try:
        async with asyncio.timeout(timeout.total_seconds()) as limit:
            return await fn(RetryAttempt(attempt, key, datetime.now(UTC) + timeout))
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise TimeoutError(f"{operation}: attempt {attempt} was stopped after {timeout.total_seconds():g} s") from error


def next_delay(
    found: Classification, attempt: int, policy: RetryPolicy, left: timedelta | None, draw: float | None = None
) -> timedelta | None:
    """Return the delay before the next attempt, or None if there is none. `left` is the time for all attempts."""
    if not found.retryable or not policy.attempts_left(attempt, found.category):
        return None
    draw = random.random() if draw is None else draw  # noqa: S311 - spreads load, keeps no secret
    delay = policy.wait_after(attempt, found.category, found.retry_after, draw)
    return delay if left is None or delay < left else None


def _facts(error: Exception, found: Classification, attempt: int, policy: RetryPolicy) -> dict[str, Any]:
    return {
        "attempt": attempt,
        "max_attempts": policy.curve_for(found.category).max_attempts,
        "category": found.category,
        "retryable": found.retryable,
        "http_status": found.http_status,
        "error_type": type(error).__name__,
        "error": str(error),
    }


def _milliseconds(duration: timedelta) -> float:
    return round(duration / timedelta(milliseconds=1), 1)
