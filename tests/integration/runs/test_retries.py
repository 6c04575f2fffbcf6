"""How often a step is tried, when, and what ends it: on the real server."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from redrive import (
    AdditiveJitter,
    Category,
    Curve,
    FullJitter,
    ModuleContext,
    NoJitter,
    Pipeline,
    RatioJitter,
    Registry,
    RetryPolicy,
    RunStatus,
    StepStatus,
    Terminal,
    Transient,
)
from redrive.policy import Jitter
from tests.conftest import WorkerFactory
from tests.integration.runs.samples import Number, milliseconds, quick, run_until_settled

LATENCY = timedelta(seconds=2)


class Flaky:
    """A pipeline `p` of one module that raises what it is told, and remembers when it was called."""

    def __init__(self, registry: Registry, policy: RetryPolicy, raises: Callable[[int], BaseException | None]) -> None:
        self.started: list[float] = []
        self.stopped: list[float] = []

        @registry.module("flaky", policy=policy)
        async def flaky(ctx: ModuleContext, given: Number) -> Number:
            self.started.append(time.monotonic())
            error = raises(ctx.attempt)
            if error is not None:
                self.stopped.append(time.monotonic())
                raise error
            return Number(n=given.n + 1)

        Pipeline("p", flaky, registry=registry)

    @property
    def gaps(self) -> list[timedelta]:
        """The time between the end of each try and the start of the next."""
        return [timedelta(seconds=b - a) for a, b in zip(self.stopped, self.started[1:], strict=False)]


def always(error: BaseException) -> Callable[[int], BaseException]:
    """Raise the same error on every try."""
    return lambda _attempt: error


async def test_a_step_heals_after_retries(worker: WorkerFactory, registry: Registry) -> None:
    """A step that fails twice and then works is tried three times, and the run succeeds."""
    Flaky(registry, quick(), lambda attempt: Transient("not yet") if attempt < 3 else None)
    async with worker() as running:
        view = await run_until_settled(running.redrive, "p", {"n": 1})
    assert view.status is RunStatus.SUCCESS
    (step,) = view.steps
    assert (step.status, step.attempt) == (StepStatus.SUCCESS, 3)
    assert [(entry.attempt, entry.error) for entry in step.attempts] == [(1, "not yet"), (2, "not yet")]


@pytest.mark.parametrize("attempts", [1, 2, 5])
async def test_a_step_is_tried_as_often_as_its_policy_says(
    worker: WorkerFactory, registry: Registry, attempts: int
) -> None:
    """A step that never works is called `max_attempts` times, the first included."""
    flaky = Flaky(registry, quick(max_attempts=attempts, base=milliseconds(1)), always(Transient("never")))
    async with worker() as running:
        view = await run_until_settled(running.redrive, "p")
    assert len(flaky.started) == attempts
    assert view.steps[0].attempt == attempts
    assert [entry.attempt for entry in view.steps[0].attempts] == list(range(1, attempts + 1))


@pytest.mark.parametrize(
    ("jitter", "low", "high"),
    [
        (NoJitter(), [100, 200, 300], [100, 200, 300]),
        (FullJitter(), [1, 1, 1], [100, 200, 300]),
        (RatioJitter(ratio=0.25), [75, 150, 225], [125, 250, 375]),
        (AdditiveJitter(max=milliseconds(50)), [100, 200, 300], [150, 250, 350]),
    ],
    ids=["none", "full", "ratio", "additive"],
)
async def test_tries_are_spaced_within_the_bounds_of_the_jitter(
    worker: WorkerFactory, registry: Registry, jitter: Jitter, low: list[int], high: list[int]
) -> None:
    """Each wait lies within the curve's bounds (base 100 ms, doubled, capped at 300 ms) and is really waited."""
    policy = quick(base=milliseconds(100), cap=milliseconds(300), jitter=jitter, max_attempts=4)
    flaky = Flaky(registry, policy, always(Transient("never")))
    async with worker() as running:
        view = await run_until_settled(running.redrive, "p")
    delays = [entry.delay for entry in view.steps[0].attempts]
    assert delays[-1] is None
    assert len(flaky.gaps) == 3
    for gap, delay, least, most in zip(flaky.gaps, delays, low, high, strict=False):
        assert delay is not None
        assert milliseconds(least) <= delay <= milliseconds(most)
        assert delay <= gap < delay + LATENCY


class Odd(Exception):
    """An error that no rule knows."""


class Odder(Odd):
    """One of its kinds."""


@pytest.mark.parametrize(
    ("error", "changes", "tries", "category"),
    [
        (Terminal("no"), {}, 1, Category.VALIDATION),
        (Terminal("no", category=Category.CONFLICT), {"transient": ["Terminal"]}, 1, Category.CONFLICT),
        (Transient("soon"), {"terminal": ["Transient"]}, 3, Category.UNKNOWN),
        (Transient("soon", category=Category.NETWORK), {}, 3, Category.NETWORK),
        (Transient("busy", category=Category.CONFLICT), {}, 3, Category.CONFLICT),
        (ConnectionResetError("gone"), {}, 3, Category.NETWORK),
        (ConnectionResetError("gone"), {"terminal": ["ConnectionError"]}, 1, Category.NETWORK),
        (Odd("?"), {"unknown": "terminal"}, 1, Category.UNKNOWN),
        (Odd("?"), {"unknown": "retry"}, 3, Category.UNKNOWN),
        (Odder("?"), {"unknown": "terminal", "transient": ["Odd"]}, 3, Category.UNKNOWN),
        (Odder("?"), {"unknown": "retry", "terminal": ["Odd"]}, 1, Category.UNKNOWN),
        (Odder("?"), {"unknown": "retry", "terminal": [f"{__name__}.Odder"]}, 1, Category.UNKNOWN),
    ],
    ids=lambda value: repr(value) if isinstance(value, BaseException) else None,
)
async def test_the_error_and_the_policy_decide_whether_to_try_again(
    *,
    worker: WorkerFactory,
    registry: Registry,
    error: BaseException,
    changes: dict[str, Any],
    tries: int,
    category: Category,
) -> None:
    """Terminal errors are tried once, transient ones up to the budget, unknown ones as the policy says."""
    flaky = Flaky(registry, quick(max_attempts=3, base=milliseconds(1), **changes), always(error))
    async with worker() as running:
        view = await run_until_settled(running.redrive, "p")
    assert len(flaky.started) == tries
    failure = view.steps[0].failure
    assert failure is not None
    assert (failure.category, failure.error_type) == (category, type(error).__name__)


async def test_a_category_can_have_a_curve_and_a_budget_of_its_own(worker: WorkerFactory, registry: Registry) -> None:
    """Failures of a category with its own curve wait by it and are tried as often as it says."""
    limited = Curve(base=milliseconds(150), factor=1, cap=milliseconds(150), max_attempts=4)
    policy = quick(max_attempts=2, base=milliseconds(5), per_category={Category.RATE_LIMIT: limited})
    flaky = Flaky(registry, policy, always(Transient("slower", category=Category.RATE_LIMIT)))
    async with worker() as running:
        view = await run_until_settled(running.redrive, "p")
    assert len(flaky.started) == 4
    assert [entry.delay for entry in view.steps[0].attempts] == [milliseconds(150)] * 3 + [None]
    assert all(gap >= milliseconds(150) for gap in flaky.gaps)


async def test_a_failure_outside_the_category_keeps_the_policys_own_budget(
    worker: WorkerFactory, registry: Registry
) -> None:
    """A category's larger budget does not lengthen the tries of other failures."""
    generous = Curve(base=milliseconds(1), cap=milliseconds(1), max_attempts=9)
    policy = quick(max_attempts=2, per_category={Category.RATE_LIMIT: generous})
    flaky = Flaky(registry, policy, always(Transient("down", category=Category.NETWORK)))
    async with worker() as running:
        await run_until_settled(running.redrive, "p")
    assert len(flaky.started) == 2


async def test_no_try_is_made_that_could_not_begin_before_the_policys_deadline(
    worker: WorkerFactory, registry: Registry
) -> None:
    """The cycle ends with its last error as soon as the next wait would run past the deadline."""
    policy = quick(base=milliseconds(200), factor=100, cap=20, max_attempts=100, deadline=15)
    flaky = Flaky(registry, policy, always(Transient("never", category=Category.NETWORK)))
    async with worker() as running:
        view = await run_until_settled(running.redrive, "p")
    assert len(flaky.started) == 2
    failure = view.steps[0].failure
    assert failure is not None
    assert (failure.category, failure.message) == (Category.NETWORK, "never")
    assert len(failure.attempts) == len(flaky.started)


class Hanging:
    """A pipeline `p` of one module that hangs, and remembers how each call of it ended."""

    def __init__(self, registry: Registry, policy: RetryPolicy) -> None:
        self.lasted: list[float] = []

        @registry.module("hanging", policy=policy)
        async def hanging(ctx: ModuleContext, given: Number) -> Number:
            started = time.monotonic()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.lasted.append(time.monotonic() - started)
                raise
            return given

        Pipeline("p", hanging, registry=registry)


async def test_the_timeout_of_an_attempt_really_stops_the_call(worker: WorkerFactory, registry: Registry) -> None:
    """A hanging module is cancelled at its timeout, each time, and the failure is a timeout that says how long."""
    hanging = Hanging(registry, quick(timeout=0.2, max_attempts=2, base=milliseconds(1)))
    async with worker() as running:
        view = await run_until_settled(running.redrive, "p")
    assert len(hanging.lasted) == 2
    assert all(lasted < 20 for lasted in hanging.lasted)
    failure = view.steps[0].failure
    assert failure is not None
    assert failure.category is Category.TIMEOUT
    assert failure.message == "the attempt took longer than its deadline of 0.2 s"


async def test_the_policys_deadline_really_stops_the_call(worker: WorkerFactory, registry: Registry) -> None:
    """A module that still runs when the time for all attempts is used up is cancelled then, not at its own timeout."""
    hanging = Hanging(registry, quick(timeout=30, deadline=1.5))
    async with worker() as running:
        view = await run_until_settled(running.redrive, "p")
        failure = view.steps[0].failure
    assert failure is not None
    assert failure.category is Category.TIMEOUT
    assert failure.message == "the step used up the 1.5 s that its policy allows for all attempts"
    assert view.steps[0].attempt == 1
    assert len(hanging.lasted) == 1
    assert hanging.lasted[0] < 20
