"""How often one principal may ask. Counted in this process: with several consoles each counts for itself."""

import math
import time

from limits import RateLimitItem, parse
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import FixedWindowRateLimiter

from console.problems import Refusal
from redrive.errors import InvalidInput


class RateLimiter:
    """Count requests, and refuse with 429 what is too much."""

    def __init__(self, rate: str) -> None:
        try:
            self._rate: RateLimitItem = parse(rate)
        except ValueError as error:
            raise InvalidInput(f"REDRIVE_RATE_LIMIT={rate!r}: must read like 1200/minute ({error})") from None
        self._windows = FixedWindowRateLimiter(MemoryStorage())

    async def check(self, who: str) -> None:
        """Count a request of a principal, or of an address that nobody knows, or refuse it."""
        rate = self._rate
        if await self._windows.hit(rate, who):
            return
        stats = await self._windows.get_window_stats(rate, who)
        wait = max(1, math.ceil(stats.reset_time - time.time()))
        raise Refusal(
            429,
            "too_many_requests",
            f"more than {rate} of you",
            f"wait {wait} s, then go on",
            headers={"Retry-After": str(wait)},
        )
