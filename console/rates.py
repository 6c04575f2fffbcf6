"""How often one principal may ask. Counted in this process: with several consoles each counts for itself."""

import math
import time
from typing import Final

from limits import RateLimitItem, parse
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import FixedWindowRateLimiter

from console.problems import Refusal
from redrive.errors import InvalidInput

# Refused sign-ins of one address. A secret has 256 bits: this is about load, not about guessing.
_STRANGERS: Final = parse("120/minute")


class RateLimiter:
    """Count requests, and refuse with 429 what is too much."""

    def __init__(self, rate: str) -> None:
        try:
            self._rate: RateLimitItem = parse(rate)
        except ValueError as error:
            raise InvalidInput(f"REDRIVE_RATE_LIMIT={rate!r}: must read like 1200/minute ({error})") from None
        self._windows = FixedWindowRateLimiter(MemoryStorage())

    async def check(self, principal: str) -> None:
        """Count a request of a principal, or refuse it."""
        await self._hit(self._rate, principal)

    async def check_stranger(self, address: str) -> None:
        """Count a refused sign-in of an address, or refuse even to say why."""
        await self._hit(_STRANGERS, f"stranger:{address}")

    async def _hit(self, rate: RateLimitItem, who: str) -> None:
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
