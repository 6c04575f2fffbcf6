"""Shapes for charts and time lines: numbers and moments in, coordinates out. The templates draw them as SVG. Pure."""

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from redrive.contracts import Attempt, StepState
from redrive.policy import Curve
from redrive.store.dead_letters.figures import HOUR_LIMIT, FailedHour

WIDTH: Final = 960
HEIGHT: Final = 150
_GAP: Final = 6
_NICE: Final = (1, 2, 5, 10)
_CURVE_POINTS: Final = 12
# A break between two steps is drawn at most this long, as a share of the time that all steps took.
LONGEST_BREAK: Final = 0.15
_THIN: Final = 0.6


class Bar(NamedTuple):
    """An hour: the position of its bar, the heights of its parts, and its label."""

    x: float
    width: float
    open_height: float
    closed_height: float
    label: str
    title: str


class Bars(NamedTuple):
    """Bars with the value at their upper edge."""

    bars: list[Bar]
    top: int
    middle: int


def hour_bars(hours: Sequence[FailedHour]) -> Bars:
    """Return a bar for each hour, open ones below closed ones."""
    top = nice_top(max((hour.total for hour in hours), default=0))
    slot = WIDTH / max(1, len(hours))
    bars = []
    for index, hour in enumerate(hours):
        more = "at least " if hour.total >= HOUR_LIMIT else ""
        title = f"{hour.begin:%d %b %H:%M} UTC: {more}{hour.total} failed, {hour.open} of them open"
        label = f"{hour.begin:%H:%M}" if hour.begin.hour % 6 == 0 else ""
        x, width = round(index * slot + _GAP / 2, 1), round(slot - _GAP, 1)
        heights = _rounded((HEIGHT * hour.open / top, HEIGHT * hour.closed / top))
        bars.append(Bar(x, width, *heights, label, title))
    return Bars(bars, top, top // 2)


def _rounded(heights: tuple[float, float]) -> tuple[float, float]:
    """Return the heights; any value above zero is at least two units high."""
    first, second = (max(2.0, round(height, 1)) if height else 0.0 for height in heights)
    return first, second


def nice_top(largest: int) -> int:
    """Return the next round number that is not below the largest value: 4, 10, 20, 50, 100, 200 …"""
    if largest <= 4:
        return 4
    size: int = 10 ** math.floor(math.log10(largest))
    return next(step * size for step in _NICE if step * size >= largest)


class Share(NamedTuple):
    """One of several amounts: its name, its size, and its length relative to the largest, from 0 to 100."""

    name: str
    amount: int
    length: float


def shares(counts: dict[str, int], most: int = 8) -> list[Share]:
    """Return the largest amounts, the rest as one."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown, rest = ordered[:most], sum(count for _, count in ordered[most:])
    largest = max((count for _, count in ordered), default=1)
    listed = [*shown, *([("other", rest)] if rest else [])]
    return [Share(name, count, round(min(100.0, max(1.0, 100 * count / largest)), 1)) for name, count in listed]


class Mark(NamedTuple):
    """An attempt on a time strip, from 0 to 100."""

    x: float
    attempt: Attempt


def strip(attempts: Sequence[Attempt]) -> list[Mark]:
    """Return the positions of attempts between the first and the last."""
    if not attempts:
        return []
    first, last = attempts[0].at, attempts[-1].at
    length = (last - first).total_seconds()
    return [Mark(_between(attempt.at, first, length), attempt) for attempt in attempts]


def _between(at: datetime, first: datetime, length: float) -> float:
    if length <= 0:
        return 2.0
    return round(2 + 96 * min(1.0, max(0.0, (at - first).total_seconds() / length)), 2)


class PolicyCurve(NamedTuple):
    """The delays of a policy as a line, with the band of its jitter. Each point is `x,y`."""

    line: str
    band: str
    points: list[tuple[float, float, str]]
    longest: float


def policy_curve(curve: Curve, width: int = 300, height: int = 72) -> PolicyCurve:
    """Return the curve of the delays after each failed attempt."""
    waits = range(1, min(curve.max_attempts, _CURVE_POINTS + 1))
    low = [curve.delay(number, 0.0).total_seconds() for number in waits]
    middle = [curve.before_jitter(number).total_seconds() for number in waits]
    high = [curve.delay(number, 1.0).total_seconds() for number in waits]
    longest = max(high, default=0.0)

    def place(index: int, value: float) -> tuple[float, float]:
        x = 8 + (width - 16) * (index / max(1, len(middle) - 1) if len(middle) > 1 else 0.5)
        return round(x, 1), round(height - 6 - (height - 14) * (value / longest if longest else 0), 1)

    upper = [place(index, value) for index, value in enumerate(high)]
    lower = [place(index, value) for index, value in enumerate(low)]
    line = [place(index, value) for index, value in enumerate(middle)]
    points = [(x, y, f"after attempt {index + 1}: {middle[index]:g} s") for index, (x, y) in enumerate(line)]
    return PolicyCurve(_path(line), _path([*upper, *reversed(lower)]), points, longest)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in points)


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
