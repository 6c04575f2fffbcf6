"""A run's steps on one time line: moments in, coordinates from 0 to 100 out. Pure."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from redrive.contracts import StepState

# A break between two steps is drawn at most this long, as a share of the time that all steps took.
LONGEST_BREAK: Final = 0.15
_THIN: Final = 0.6


class Stretch(NamedTuple):
    """A stretch of time: its start and its length."""

    x: float
    width: float


class StepBar(NamedTuple):
    """When a step ran, the waits between its attempts, and where attempts failed."""

    bar: Stretch
    waits: list[Stretch]
    failures: list[float]
    after: timedelta
    took: timedelta
    cut: timedelta | None


class _Cycle(NamedTuple):
    step: StepState
    begin: datetime
    end: datetime
    idle: timedelta


def step_bars(steps: Sequence[StepState], until: datetime) -> dict[str, StepBar]:
    """Return the bars of the steps whose times are known, by name; one that still runs ends at `until`.

    A run may be parked for days: a long break before a step is cut, or nothing else would be visible.
    """
    cycles = list(_cycles(steps, until))
    longest = LONGEST_BREAK * sum((cycle.end - cycle.begin for cycle in cycles), timedelta())
    drawn = [min(cycle.idle, longest) + (cycle.end - cycle.begin) for cycle in cycles]
    scale = 100 / max(0.001, sum(drawn, timedelta()).total_seconds())
    bars: dict[str, StepBar] = {}
    passed = timedelta()
    for cycle, length in zip(cycles, drawn, strict=True):
        x = (passed + min(cycle.idle, longest)).total_seconds() * scale
        cut = cycle.idle if cycle.idle > longest else None
        bars[cycle.step.name] = _bar(cycle, x, scale, cycle.begin - cycles[0].begin, cut)
        passed += length
    return bars


def _cycles(steps: Sequence[StepState], until: datetime) -> Iterator[_Cycle]:
    last: datetime | None = None
    for step in steps:
        if step.started_at is None:
            continue
        begin = step.started_at
        end = max(begin, step.finished_at or until)
        yield _Cycle(step, begin, end, max(timedelta(), begin - (last or begin)))
        last = end


def _bar(cycle: _Cycle, x: float, scale: float, after: timedelta, cut: timedelta | None) -> StepBar:
    def place(at: datetime) -> float:
        # The attempts' times are from workers' clocks: none may lie outside of its step.
        within = min(cycle.end, max(cycle.begin, at)) - cycle.begin
        return round(min(100.0, x + within.total_seconds() * scale), 2)

    def stretch(begin: datetime, end: datetime) -> Stretch:
        return Stretch(place(begin), round(place(end) - place(begin), 2))

    width = max(_THIN, stretch(cycle.begin, cycle.end).width)
    attempts = cycle.step.attempts
    return StepBar(
        bar=Stretch(round(min(x, 100 - width), 2), width),
        waits=[stretch(each.at, each.at + each.delay) for each in attempts if each.delay],
        failures=[place(each.at) for each in attempts],
        after=after,
        took=cycle.end - cycle.begin,
        cut=cut,
    )
