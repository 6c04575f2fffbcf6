"""Shapes for charts: numbers in, coordinates out. The templates draw them as SVG. Pure.

No styles here: they are in the style sheet, and the content security policy forbids inline styles.
"""

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from redrive.contracts import Attempt
from redrive.policy import Curve
from redrive.store.dead_letters.figures import HOUR_LIMIT, FailedHour

WIDTH: Final = 960
HEIGHT: Final = 150
_GAP: Final = 6
_NICE: Final = (1, 2, 5, 10)
_CURVE_POINTS: Final = 12


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
