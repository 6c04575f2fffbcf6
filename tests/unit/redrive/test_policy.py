"""The curves, against the formulas of their sources."""

import random
import statistics
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from redrive.categories import TRANSIENT_CATEGORIES, Category
from redrive.policy import (
    EVENT,
    MESSAGE,
    PRESETS,
    SERVICE_CALL,
    SHORTEST_DELAY,
    STEP,
    AdditiveJitter,
    Curve,
    FullJitter,
    NoJitter,
    RatioJitter,
    RetryPolicy,
)

SECOND = timedelta(seconds=1)
DRAWS = st.floats(min_value=0, max_value=1, exclude_max=True)
DURATIONS = st.timedeltas(min_value=timedelta(milliseconds=1), max_value=timedelta(days=30))
JITTERS = st.one_of(
    st.just(NoJitter()),
    st.just(FullJitter()),
    st.builds(RatioJitter, ratio=st.floats(min_value=0.01, max_value=1)),
    st.builds(AdditiveJitter, max=DURATIONS),
)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Any curve that the model accepts."""
    base, cap = sorted([draw(DURATIONS), draw(DURATIONS)])
    factor = draw(st.floats(min_value=1, max_value=100))
    return Curve(base=base, factor=factor, cap=cap, jitter=draw(JITTERS), max_attempts=draw(st.integers(1, 1000)))


@pytest.mark.parametrize(
    ("policy", "seconds", "attempts", "timeout", "unknown"),
    [
        (SERVICE_CALL, [0.25, 0.5, 1, 2, 4, 5, 5], 3, 10, "retry"),
        (MESSAGE, [2, 4, 8, 16, 32, 60, 60], 4, 30, "retry"),
        (EVENT, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300], 5, 30, "retry"),
        (STEP, [2, 4, 8, 16, 32, 64, 120, 120], 4, 60, "terminal"),
    ],
    ids=["service_call", "message", "event", "step"],
)
def test_preset_has_the_numbers_of_its_source(
    policy: RetryPolicy, seconds: list[float], attempts: int, timeout: int, unknown: str
) -> None:
    """Each preset follows the schedule that its source document gives."""
    assert [policy.before_jitter(attempt) / SECOND for attempt in range(1, len(seconds) + 1)] == seconds
    assert (policy.max_attempts, policy.timeout / SECOND, policy.unknown) == (attempts, timeout, unknown)


@given(st.integers(1, 10_000), DRAWS)
def test_preset_delays_stay_in_their_bounds(attempt: int, draw: float) -> None:
    """Full jitter is in [0, delay), ratio in delay ± 25 %, additive in [delay, delay + 1 s)."""
    full, message, step = (policy.before_jitter(attempt) for policy in (EVENT, MESSAGE, STEP))
    assert SHORTEST_DELAY <= EVENT.delay(attempt, draw) <= full
    assert SHORTEST_DELAY <= SERVICE_CALL.delay(attempt, draw) <= timedelta(seconds=5)
    assert message <= MESSAGE.delay(attempt, draw) <= message + SECOND
    assert step * 0.75 <= STEP.delay(attempt, draw) <= step * 1.25


@given(curves(), st.integers(1, 2000))
def test_delay_grows_to_the_cap_and_stays(curve: Curve, attempt: int) -> None:
    """Before jitter no wait is shorter than the one before it, and none is over the cap."""
    delays = [curve.before_jitter(number) for number in range(attempt, attempt + 5)]
    assert all(earlier <= later for earlier, later in pairwise(delays))
    assert curve.base <= delays[0]
    assert delays[-1] <= curve.cap


@given(curves(), st.integers(1, 12))
def test_delay_is_the_formula(curve: Curve, attempt: int) -> None:
    """min(cap, base * factor^(attempt-1)), to the microsecond where floats allow it."""
    expected = min(curve.cap.total_seconds(), curve.base.total_seconds() * curve.factor ** (attempt - 1))
    assert curve.before_jitter(attempt).total_seconds() == pytest.approx(expected, rel=1e-9, abs=1e-6)


@given(curves(), st.integers(1, 10**6), DRAWS)
def test_delay_is_never_zero(curve: Curve, attempt: int, draw: float) -> None:
    """Temporal would take a delay of zero for none at all."""
    assert curve.delay(attempt, draw) >= SHORTEST_DELAY


@pytest.mark.parametrize(
    ("policy", "low", "high"),
    [(EVENT, 0.0, 8.0), (MESSAGE, 16.0, 17.0), (STEP, 12.0, 20.0)],
    ids=["full", "additive", "ratio"],
)
def test_jitter_is_spread_evenly(policy: RetryPolicy, low: float, high: float) -> None:
    """10,000 delays after the fourth try are uniform: the Kolmogorov-Smirnov distance is below the 0.1 % limit."""
    source = random.Random(42)
    drawn = sorted(policy.delay(4, source.random()) / SECOND for _ in range(10_000))
    distance = max(abs((value - low) / (high - low) - rank / 10_000) for rank, value in enumerate(drawn))
    assert distance < 1.95 / 100
    assert statistics.mean(drawn) == pytest.approx((low + high) / 2, rel=0.02)


@given(st.timedeltas(min_value=timedelta(0)), DRAWS)
def test_retry_after_wins_up_to_its_cap(asked: timedelta, draw: float) -> None:
    """What a service asks for is obeyed exactly, but not for longer than the cap."""
    policy = STEP.model_copy(update={"retry_after_cap": timedelta(minutes=1)})
    wait = policy.wait_after(1, Category.RATE_LIMIT, asked, draw)
    assert wait == max(SHORTEST_DELAY, min(asked, timedelta(minutes=1)))


def test_category_has_its_own_curve_and_budget() -> None:
    """A category with an entry in per_category follows it; the others follow the policy."""
    slow = Curve(base=SECOND * 30, cap=SECOND * 30, max_attempts=9)
    policy = STEP.model_copy(update={"per_category": {Category.RATE_LIMIT: slow}})
    assert policy.wait_after(1, Category.RATE_LIMIT, None, 0.5) == SECOND * 30
    assert policy.wait_after(1, Category.NETWORK, None, 0.5) == SECOND * 2
    assert policy.attempts_left(8, Category.RATE_LIMIT)
    assert not policy.attempts_left(9, Category.RATE_LIMIT)
    assert not policy.attempts_left(4, Category.NETWORK)
    assert policy.most_attempts == 9


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_policy_that_could_be_given(name: str) -> None:
    """It is made without validation, and no different from one that was validated."""
    policy = PRESETS[name]
    assert RetryPolicy.model_validate_json(policy.model_dump_json()) == policy
    assert RetryPolicy(**{field: getattr(policy, field) for field in policy.model_fields_set}) == policy


@pytest.mark.parametrize("name", PRESETS)
def test_first_try_counts(name: str) -> None:
    """A budget of n means n tries: after the n-th there is none."""
    policy = PRESETS[name]
    assert policy.attempts_left(policy.max_attempts - 1, Category.TIMEOUT)
    assert not policy.attempts_left(policy.max_attempts, Category.TIMEOUT)


@pytest.mark.parametrize("category", Category)
def test_policy_retries_the_transient_categories_only(category: Category) -> None:
    """Transient categories are tried again, terminal ones are not, and the policy decides on unknown ones."""
    unknown = category is Category.UNKNOWN
    assert EVENT.retries(category) is (category in TRANSIENT_CATEGORIES or unknown)
    assert STEP.retries(category) is (category in TRANSIENT_CATEGORIES)


@given(curves(), JITTERS)
def test_policy_survives_json(curve: Curve, jitter: NoJitter) -> None:
    """A policy travels in a workflow's input and comes out the same."""
    policy = STEP.model_copy(update={"jitter": jitter, "per_category": {Category.TIMEOUT: curve}})
    assert RetryPolicy.model_validate_json(policy.model_dump_json()) == policy


@pytest.mark.parametrize(
    "wrong",
    [
        {"base": timedelta(0)},
        {"base": timedelta(minutes=3)},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"max_attempts": 0},
        {"timeout": timedelta(seconds=-1)},
        {"cap": timedelta(days=31)},
        {"jitter": {"kind": "ratio", "ratio": 1.5}},
        {"attempts": 3},
    ],
    ids=str,
)
def test_senseless_policy_is_refused(wrong: dict[str, object]) -> None:
    """A policy that could never work is refused when it is made."""
    with pytest.raises(ValidationError):
        RetryPolicy.model_validate(STEP.model_dump() | wrong)
