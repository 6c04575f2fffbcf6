"""Rate limits of one principal, or of one unknown address. Counted in memory, per process."""

import contextlib
import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Final

from limits import RateLimitItem, parse
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import FixedWindowRateLimiter
from starlette.requests import HTTPConnection

from redrive.console.metrics import RequestMetrics
from redrive.console.problems import Refusal
from redrive.errors import InvalidInput

_REMEMBERED: Final = 10_000


class RateLimiter:
    """Count requests, and refuse with 429 those over the limit."""

    def __init__(self, rate: str, metrics: RequestMetrics, *, variable: str = "REDRIVE_RATE_LIMIT") -> None:
        self._variable = variable
        self._metrics = metrics
        try:
            self._rate: RateLimitItem = parse(rate)
        except ValueError as error:
            raise InvalidInput(f"{variable}={rate!r}: must read like 1200/minute ({error})") from None
        self._storage = MemoryStorage()
        self._windows = FixedWindowRateLimiter(self._storage)

    async def check(self, who: str) -> None:
        """Count a request, or refuse it."""
        rate = self._rate
        if await self._windows.hit(rate, who):
            return
        stats = await self._windows.get_window_stats(rate, who)
        wait = max(1, math.ceil(stats.reset_time - time.time()))
        self._metrics.refused(self._variable.removeprefix("REDRIVE_").lower())
        raise Refusal(
            429,
            "too_many_requests",
            f"more than {rate} of you ({self._variable})",
            f"wait {wait} s, then go on",
            headers={"Retry-After": str(wait)},
        )

    async def give_back(self, who: str) -> None:
        """Uncount a request, if it was counted in this window."""
        key = self._rate.key_for(who)
        if await self._storage.get(key) > 0:
            await self._storage.incr(key, self._rate.get_expiry(), -1)


class Strangers:
    """Callers not yet authenticated: counted by their address, before the database is asked about them."""

    def __init__(self, rate: str, metrics: RequestMetrics) -> None:
        self._limiter = RateLimiter(rate, metrics, variable="REDRIVE_STRANGER_LIMIT")
        # Recently valid credentials. Behind one proxy, strangers must not use up everybody's limit.
        self._good: OrderedDict[bytes, None] = OrderedDict()

    async def count(self, request: HTTPConnection, what: str) -> None:
        """Count a request that needs no credentials, or refuse it."""
        await self._limiter.check(f"{what}:{_address(request)}")

    @contextlib.asynccontextmanager
    async def asking(self, request: HTTPConnection, credential: str) -> AsyncIterator[None]:
        """Count an authentication until it is answered, and keep the count if it is refused."""
        who = f"stranger:{_address(request)}"
        mark = hashlib.sha256(credential.encode("utf-8", "surrogatepass")).digest()
        counted = mark not in self._good
        if counted:
            await self._limiter.check(who)
        try:
            yield
        except Refusal:
            self._good.pop(mark, None)
            if not counted:
                await self._limiter.check(who)
            raise
        except BaseException:
            # Nobody knows whether it is a stranger.
            if counted:
                await self._limiter.give_back(who)
            raise
        if counted:
            await self._limiter.give_back(who)
        self._remember(mark)

    def _remember(self, mark: bytes) -> None:
        self._good[mark] = None
        if len(self._good) > _REMEMBERED:
            self._good.popitem(last=False)


def _address(request: HTTPConnection) -> str:
    return request.client.host if request.client else ""
