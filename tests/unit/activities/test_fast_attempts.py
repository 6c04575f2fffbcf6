"""A fast first attempt and the activity that goes on: one numbering, one history, the delays of the policy."""

import asyncio
import dataclasses
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic_core import from_json
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from redrive import Category, Curve, FullJitter, ModuleContext, NoJitter, Registry, RetryPolicy, Terminal, Transient
from redrive.activities.fast_attempts import check_may_be_fast, is_unreported, reported_again
from redrive.activities.module_threads import ModuleThreads
from redrive.activities.run_records import DatabaseRecords
from redrive.activities.run_step import StepActivities
from redrive.activities.step_slots import StepSlots
from redrive.contracts import Attempt, AttemptError, FailedCycle, StepInput
from redrive.metrics import Metrics
from redrive.postgres.database import Database
from redrive.redaction.redactor import Redactor
from redrive.workflows.failures import failed_fast

NOBODY = "postgresql://nobody@127.0.0.1:1/nothing"
# Once: each reads the certificates of the machine.
HTTP = httpx.AsyncClient()


class Number(BaseModel):
    """The smallest document."""

    n: int = 0


@dataclasses.dataclass
class Cycle:
    """All attempts of a step, as a module, Temporal and an operator see them."""

    seen: list[int] = dataclasses.field(default_factory=list)
    waits: list[timedelta | None] = dataclasses.field(default_factory=list)
    attempts: list[Attempt] = dataclasses.field(default_factory=list)
    category: str | None = None

    def facts(self) -> tuple[Any, ...]:
        """Return what must be the same, however the first attempt was made: everything but the times."""
        told = [entry.model_dump(exclude={"at"}) for entry in self.attempts]
        return self.seen, [entry.delay for entry in self.attempts], told, self.category


class Bench:
    """Plays Temporal: calls the step activity as often as it would, with the same heartbeats and inputs."""

    def __init__(self, policy: RetryPolicy, errors: Sequence[BaseException | None]) -> None:
        self.cycle = Cycle()
        registry = Registry()

        @registry.module("step", policy=policy, fast=True)
        async def step(ctx: ModuleContext, given: Number) -> Number:
            self.cycle.seen.append(ctx.attempt)
            error = errors[min(ctx.attempt, len(errors)) - 1]
            if error is not None:
                raise error
            return given

        self.policy = policy
        self.given = StepInput(
            run_id="r", tenant="t", pipeline="p", step=step.snapshot(), document={}, correlation_id="c"
        )
        self._activities = StepActivities(
            registry,
            HTTP,
            services={},
            user_header="x-user",
            private_addresses=False,
            build_id="build",
            redactor=Redactor(),
            metrics=Metrics(),
            records=DatabaseRecords(Database(NOBODY)),
            slots=StepSlots(4, 1),
            threads=ModuleThreads(4),
            resources={},
        )

    async def run_ordinary(self, given: StepInput) -> Cycle:
        """Run an activity until it succeeds or Temporal gives it up."""
        heartbeat: list[Any] = []
        for attempt in range(1, self.policy.most_attempts + 1):
            error = await self._attempt(given, attempt, heartbeat)
            if error is None:
                return self.cycle
            self.cycle.waits.append(error.next_retry_delay)
            if error.non_retryable:
                break
        return self.cycle

    async def run_fast(self) -> Cycle:
        """Run the first attempt as a local activity, and go on as the workflow does."""
        error = await self._attempt(self.given, 1, [], is_local=True)
        if error is None:
            return self.cycle
        assert error.next_retry_delay is None
        self.cycle.attempts = []
        wire = ApplicationError(error.message, from_json(_details(error).model_dump_json()), type=error.type)
        failed = failed_fast(wire, self.given)
        assert failed is not None
        return await self.run_ordinary(self.given.model_copy(update={"failed": failed}))

    async def _attempt(
        self, given: StepInput, attempt: int, heartbeat: list[Any], *, is_local: bool = False
    ) -> ApplicationError | None:
        environment = ActivityEnvironment()
        now = datetime.now(UTC)
        environment.info = dataclasses.replace(
            environment.info,
            attempt=attempt,
            is_local=is_local,
            heartbeat_details=list(heartbeat),
            scheduled_time=now,
            started_time=now,
            current_attempt_scheduled_time=now,
        )

        def beat(*details: Any) -> None:
            heartbeat[:] = details

        environment.on_heartbeat = beat
        raw = RawValue(Payload(data=given.model_dump_json().encode()))
        try:
            result = await environment.run(self._activities.run_step, raw)
        except ApplicationError as error:
            details = _details(error)
            self.cycle.attempts, self.cycle.category = details.attempts, error.type
            return error
        self.cycle.attempts = [Attempt.model_validate(entry) for entry in from_json(result.payload.data)["attempts"]]
        self.cycle.category = None
        return None


def _details(error: ApplicationError) -> AttemptError:
    (details,) = error.details
    assert isinstance(details, AttemptError)
    return details


DELAYS = st.integers(1, 5000).map(lambda count: timedelta(milliseconds=count))
JITTERS = st.sampled_from([NoJitter(), FullJitter()])
CURVES = st.builds(
    lambda base, factor, jitter, attempts: Curve(
        base=base, factor=factor, cap=timedelta(seconds=20), jitter=jitter, max_attempts=attempts
    ),
    DELAYS,
    st.floats(1, 3),
    JITTERS,
    st.integers(1, 5),
)
POLICIES = st.builds(
    lambda curve, limited, unknown, deadline: RetryPolicy(
        **dict(curve),
        timeout=timedelta(seconds=5),
        unknown=unknown,
        deadline=deadline,
        per_category={Category.RATE_LIMIT: limited} if limited else {},
    ),
    CURVES,
    st.none() | CURVES,
    st.sampled_from(["retry", "terminal"]),
    st.none() | st.just(timedelta(seconds=30)),
)
ERRORS = st.sampled_from(
    [
        None,
        Transient("away", category=Category.NETWORK),
        Transient("busy", category=Category.RATE_LIMIT, retry_after=timedelta(seconds=3)),
        Terminal("never"),
        ValueError("what?"),
    ]
)


@settings(max_examples=30, deadline=None)
@given(POLICIES, st.lists(ERRORS, min_size=1, max_size=6), st.integers())
def test_a_fast_first_attempt_changes_no_number_and_no_delay(
    policy: RetryPolicy, errors: list[BaseException | None], seed: int
) -> None:
    """Whatever fails, the module, the history and the end are those of an ordinary step; so is what Temporal waits."""

    async def both() -> tuple[Cycle, Cycle]:
        ordinary, fast = Bench(policy, errors), Bench(policy, errors)
        random.seed(seed)
        first = await ordinary.run_ordinary(ordinary.given)
        random.seed(seed)
        return first, await fast.run_fast()

    ordinary, fast = asyncio.run(both())
    assert fast.facts() == ordinary.facts()
    assert len(fast.waits) == len(ordinary.waits)
    for asked, wanted in zip(fast.waits, ordinary.waits, strict=True):
        assert (asked is None) == (wanted is None)
        if asked is not None and wanted is not None:
            # What is left of the first delay: some of it may be over.
            assert wanted - timedelta(seconds=2) <= asked <= wanted


def _failed(delay: timedelta | None, at: datetime) -> FailedCycle:
    entry = Attempt(attempt=1, at=at, category=Category.NETWORK, error_type="Transient", error="away", delay=delay)
    return FailedCycle(
        step="s", cycle=1, category=Category.NETWORK, message="away", error_type="Transient", attempts=[entry]
    )


LONG = timedelta(minutes=5)


@pytest.mark.parametrize(
    ("attempt", "heartbeat", "delay", "ago", "expected"),
    [
        (1, [], LONG, timedelta(0), True),
        (1, [], LONG, LONG, True),
        (2, [[]], LONG, timedelta(0), False),
        (2, [], LONG, timedelta(0), True),
        (2, [], LONG, LONG, False),
        (2, [], None, LONG, True),
    ],
    ids=["first", "first, late", "reported", "its report died", "its report died, the delay is over", "terminal"],
)
async def test_the_fast_attempt_is_reported_until_it_is(
    *, attempt: int, heartbeat: list[Any], delay: timedelta | None, ago: timedelta, expected: bool
) -> None:
    """Also when the worker dies of it: a delay that a service asked for is kept, a terminal failure stays one."""
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, attempt=attempt, heartbeat_details=heartbeat)
    assert environment.run(is_unreported, _failed(delay, datetime.now(UTC) - ago)) is expected


@pytest.mark.parametrize(
    ("skew", "least", "most"),
    [(timedelta(0), timedelta(seconds=290), LONG), (LONG, LONG, LONG), (-2 * LONG, timedelta(0), timedelta(seconds=1))],
    ids=["equal clocks", "the attempt's clock is ahead", "the attempt's clock is behind"],
)
async def test_the_rest_of_the_delay_is_bounded_when_clocks_differ(
    skew: timedelta, least: timedelta, most: timedelta
) -> None:
    """The wait is never longer than the policy's delay, and never none."""
    error = ActivityEnvironment().run(reported_again, _failed(LONG, datetime.now(UTC) + skew))
    assert error.next_retry_delay is not None
    assert least <= error.next_retry_delay <= most
    assert error.next_retry_delay > timedelta(0)


async def test_a_worker_that_is_being_stopped_begins_no_fast_attempt() -> None:
    """Its workflow task ends soon that way: the step becomes an ordinary activity, for another worker."""
    step = Bench(RetryPolicy(base=LONG, cap=LONG, max_attempts=1, timeout=timedelta(seconds=1)), [None])
    environment = ActivityEnvironment()
    environment.worker_shutdown()
    with pytest.raises(ApplicationError, match="the worker is being stopped") as raised:
        await environment.run(check_may_be_fast, step.given)
    assert raised.value.non_retryable
