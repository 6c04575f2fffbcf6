"""A token bucket. Pure: the caller provides the clock."""

import math


class TokenBucket:
    """A bucket that fills at the rate and holds one second of it, or one.

    It begins with what has accumulated since anybody last took something; with one if nobody ever did.
    """

    def __init__(self, rate: float | None, waited: float | None = None) -> None:
        self._rate = rate
        self._ready = 1.0 if rate is None or waited is None else min(max(1.0, rate), waited * rate)
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
