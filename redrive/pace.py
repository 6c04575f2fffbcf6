"""How many may be done now, at so many per second. Pure: the caller has the clock."""

import math


class Pace:
    """A bucket that fills at the rate and holds one second of it; it begins with one."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._ready = 1.0
        self._at: float | None = None

    def take(self, now: float, wanted: int) -> int:
        """Take as many as wanted, or as there are."""
        if self._rate is None:
            return wanted
        if self._at is not None:
            self._ready = min(max(1.0, self._rate), self._ready + (now - self._at) * self._rate)
        self._at = now
        taken = min(wanted, math.floor(self._ready))
        self._ready -= taken
        return taken
