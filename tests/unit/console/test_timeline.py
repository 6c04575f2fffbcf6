"""The steps of a run on one line of time."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.categories import Category
from redrive.console.web.charts import LONGEST_BREAK, step_bars
from redrive.contracts import Attempt, StepState

NOW = datetime(2026, 11, 16, 3, 0, tzinfo=UTC)
LENGTHS = st.floats(0, 1e6)


def at(seconds: float) -> datetime:
    """Return a moment."""
    return NOW + timedelta(seconds=seconds)


def step(name: str, begin: float | None, end: float | None, *failures: tuple[float, float | None]) -> StepState:
    """A step that ran from one second to another; its attempts failed at these seconds, and waited so long."""
    attempts = [
        Attempt(
            attempt=number,
            at=at(failed),
            category=Category.NETWORK,
            error_type="E",
            error="e",
            delay=None if delay is None else timedelta(seconds=delay),
        )
        for number, (failed, delay) in enumerate(failures, start=1)
    ]
    times = {"started_at": None if begin is None else at(begin), "finished_at": None if end is None else at(end)}
    return StepState(name=name, attempts=attempts, **times)


def test_bars_are_to_scale() -> None:
    """Steps that follow each other share the line as they shared the time."""
    bars = step_bars([step("a", 0, 1), step("b", 1, 4)], at(9))
    assert bars["a"].bar == (0, 25)
    assert bars["b"].bar == (25, 75)
    assert (bars["b"].after, bars["b"].took, bars["b"].cut) == (timedelta(seconds=1), timedelta(seconds=3), None)


def test_waits_and_failures_lie_where_they_were() -> None:
    """Failed after one second, waited two, failed after another, waited six, and worked."""
    bar = step_bars([step("a", 0, 10, (1, 2), (4, 6))], at(99))["a"]
    assert bar.failures == [10, 40]
    assert bar.waits == [(10, 20), (40, 60)]


def test_a_step_that_runs_ends_now() -> None:
    """Its bar grows until it has ended; a wait that is not over is drawn as far as it got."""
    bars = step_bars([step("a", 0, 5), step("b", 5, None, (6, 60)), step("c", None, None)], at(10))
    assert bars["b"].bar == (50, 50)
    assert bars["b"].waits == [(60, 40)]
    assert "c" not in bars


def test_a_long_break_is_cut() -> None:
    """A run that was parked for a day between two steps of a second still shows both, and says how long it was."""
    day = 86_400
    bars = step_bars([step("a", 0, 1), step("b", day, day + 1)], at(day + 9))
    assert bars["b"].cut == timedelta(seconds=day - 1)
    assert bars["a"].bar.width == bars["b"].bar.width == pytest.approx(100 / (2 + 2 * LONGEST_BREAK), abs=0.01)


def test_a_run_from_before_has_no_line() -> None:
    """Steps without times are left out."""
    assert step_bars([StepState(name="a", attempts=[])], at(0)) == {}


@given(st.lists(st.tuples(LENGTHS, LENGTHS, st.floats(-1e6, 1e6)), min_size=1, max_size=8))
def test_nothing_leaves_the_line(given: list[tuple[float, float, float]]) -> None:
    """Whatever the times, also those of a worker whose clock is wrong: all is on the line, in order, visible."""
    steps, passed = [], 0.0
    for number, (idle, length, failed) in enumerate(given):
        steps.append(step(f"s{number}", passed + idle, passed + idle + length, (failed, abs(failed))))
        passed += idle + length
    bars = list(step_bars(steps, at(passed)).values())
    assert len(bars) == len(steps)
    for bar in bars:
        assert bar.bar.width > 0
        for stretch in (bar.bar, *bar.waits):
            assert 0 <= stretch.x <= stretch.x + stretch.width <= 100.02
            assert stretch.width >= 0
        assert all(0 <= x <= 100 for x in bar.failures)
    assert [bar.bar.x for bar in bars] == sorted(bar.bar.x for bar in bars)
