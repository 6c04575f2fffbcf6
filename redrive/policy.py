"""When to retry: the retry policy, its four presets and their curves.

Pure: every function takes the random draw it needs, so a delay can be computed, tested and drawn as a curve.
"""

from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from redrive.categories import TRANSIENT_CATEGORIES, Category

# Temporal silently drops a next_retry_delay of zero and falls back to its own backoff.
SHORTEST_DELAY = timedelta(milliseconds=1)

Positive = Annotated[timedelta, Field(gt=timedelta(0), le=timedelta(days=30))]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class NoJitter(_Frozen):
    """Wait exactly the curve's delay."""

    kind: Literal["none"] = "none"

    def apply(self, delay: timedelta, draw: float) -> timedelta:  # noqa: ARG002 - the shape of every jitter
        return delay


class FullJitter(_Frozen):
    """Wait anything from zero to the curve's delay."""

    kind: Literal["full"] = "full"

    def apply(self, delay: timedelta, draw: float) -> timedelta:
        return delay * draw


class RatioJitter(_Frozen):
    """Wait the curve's delay, plus or minus a share of it."""

    kind: Literal["ratio"] = "ratio"
    ratio: float = Field(gt=0, le=1)

    def apply(self, delay: timedelta, draw: float) -> timedelta:
        return delay * (1 - self.ratio + 2 * self.ratio * draw)


class AdditiveJitter(_Frozen):
    """Wait the curve's delay plus up to `max`."""

    kind: Literal["additive"] = "additive"
    max: Positive

    def apply(self, delay: timedelta, draw: float) -> timedelta:
        return delay + self.max * draw


Jitter = Annotated[NoJitter | FullJitter | RatioJitter | AdditiveJitter, Field(discriminator="kind")]


class Curve(_Frozen):
    """Growing delays: min(cap, base * factor^(attempt-1)), then jitter."""

    base: Positive
    factor: float = Field(default=2.0, ge=1, le=100, allow_inf_nan=False)
    cap: Positive
    jitter: Jitter = NoJitter.model_construct()
    max_attempts: int = Field(ge=1, le=1000, description="how often a step is tried; the first try counts")

    @model_validator(mode="after")
    def _cap_is_not_below_base(self) -> Self:
        if self.cap < self.base:
            raise ValueError(f"cap ({self.cap}) is below base ({self.base})")
        return self

    def before_jitter(self, attempt: int) -> timedelta:
        """Return the delay after the given attempt (1 is the first) failed, without jitter."""
        try:
            return min(self.cap, self.base * self.factor ** (attempt - 1))
        except OverflowError:
            return self.cap

    def delay(self, attempt: int, draw: float) -> timedelta:
        """Return the delay after the given attempt failed; `draw` is a random number in [0, 1)."""
        return max(SHORTEST_DELAY, self.jitter.apply(self.before_jitter(attempt), draw))


class RetryPolicy(Curve):
    """How a step is retried: the curve, the deadlines and which errors are worth another attempt."""

    timeout: Positive = Field(description="how long one attempt may take")
    deadline: Positive | None = Field(default=None, description="how long all attempts of a cycle may take together")
    unknown: Literal["retry", "terminal"] = Field(
        default="terminal", description="what to do with an error that no rule knows"
    )
    terminal: tuple[str, ...] = Field(default=(), description="names of error types that end the attempts")
    transient: tuple[str, ...] = Field(default=(), description="names of error types that are tried again")
    retry_after_cap: Positive = Field(
        default=timedelta(minutes=10), description="the longest a service's Retry-After is obeyed"
    )
    per_category: dict[Category, Curve] = Field(default_factory=dict, description="a curve of its own for a category")

    def curve_for(self, category: Category) -> Curve:
        """Return the curve that failures of this category follow."""
        return self.per_category.get(category, self)

    def wait_after(self, attempt: int, category: Category, retry_after: timedelta | None, draw: float) -> timedelta:
        """Return the delay after an attempt failed. A service's `Retry-After` takes precedence over the curve."""
        if retry_after is not None:
            return max(SHORTEST_DELAY, min(retry_after, self.retry_after_cap))
        return self.curve_for(category).delay(attempt, draw)

    def retries(self, category: Category) -> bool:
        """Tell whether failures of this category are retried at all."""
        if category is Category.UNKNOWN:
            return self.unknown == "retry"
        return category in TRANSIENT_CATEGORIES

    def attempts_left(self, attempt: int, category: Category) -> bool:
        """Tell whether the budget of this category allows an attempt after the given one."""
        return attempt < self.curve_for(category).max_attempts

    @property
    def most_attempts(self) -> int:
        """The largest budget of any category: no step has more attempts than this."""
        return max([self.max_attempts, *(curve.max_attempts for curve in self.per_category.values())])


# Constructed, not validated: who only names a preset does not wait until pydantic has built the models.
SERVICE_CALL = RetryPolicy.model_construct(
    base=timedelta(milliseconds=250),
    cap=timedelta(seconds=5),
    jitter=FullJitter.model_construct(),
    max_attempts=3,
    timeout=timedelta(seconds=10),
    unknown="retry",
)
MESSAGE = RetryPolicy.model_construct(
    base=timedelta(seconds=2),
    cap=timedelta(seconds=60),
    jitter=AdditiveJitter.model_construct(max=timedelta(seconds=1)),
    max_attempts=4,
    timeout=timedelta(seconds=30),
    unknown="retry",
)
EVENT = RetryPolicy.model_construct(
    base=timedelta(seconds=1),
    cap=timedelta(minutes=5),
    jitter=FullJitter.model_construct(),
    max_attempts=5,
    timeout=timedelta(seconds=30),
    unknown="retry",
)
STEP = RetryPolicy.model_construct(
    base=timedelta(seconds=2),
    cap=timedelta(minutes=2),
    jitter=RatioJitter.model_construct(ratio=0.25),
    max_attempts=4,
    timeout=timedelta(seconds=60),
    unknown="terminal",
)
PRESETS = {"service_call": SERVICE_CALL, "message": MESSAGE, "event": EVENT, "step": STEP}
