"""How much one principal, one unknown address and one tenant may use.

Rate limits of a principal or an address are counted in memory, per process. A tenant's limits hold whoever asks and
whichever console answers.
"""

import asyncio
import contextlib
import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID

from limits import RateLimitItem, parse
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import FixedWindowRateLimiter
from starlette.requests import HTTPConnection
from temporalio.client import Client
from temporalio.service import RPCError

from redrive.console.problems import Refusal
from redrive.console.telemetry import RequestMetrics
from redrive.errors import InvalidInput, Unavailable
from redrive.logs import get_logger
from redrive.postgres.database import DATABASE_ERRORS, CircuitBreaker, Database, DeadlinePool
from redrive.settings import Settings
from redrive.store.tenant_limits import hold_stream, release_stream, take_tokens
from redrive.token_bucket import TokenBucket
from redrive.visibility import runs_query

_REMEMBERED: Final = 10_000
LONGEST: Final = timedelta(seconds=1)
# Tokens that a console has taken and not used expire after this.
_LEASE: Final = 10.0
# The share of a bucket in one batch: a console may exceed the limit by this much.
_BATCH: Final = 0.1
_STREAM_LASTS: Final = timedelta(seconds=45)
# The maximum age of a count of open runs: near the limit, while a new count is under way, and at all.
_FRESH, _STALE, _GONE = 1.0, 5.0, 60.0
_NEAR: Final = 0.8

_log = get_logger(__name__)


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


def exceeded(limit: str, tenant: str, what: str, wait: int) -> Refusal:
    """Refuse a request over a limit, and name the limit."""
    return Refusal(
        429,
        "tenant_limit",
        f"tenant {tenant!r} has {what} (REDRIVE_TENANT_LIMITS: {limit})",
        f"wait {wait} s, then try again; or ask the operators of this installation for more",
        headers={"Retry-After": str(wait)},
    )


@dataclass
class _Lease:
    """The tokens that a console holds of one bucket."""

    local: TokenBucket
    tokens: int = 0
    ends: float = 0.0
    empty_until: float = 0.0
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    def take(self, now: float) -> bool:
        if self.tokens < 1 or now >= self.ends:
            return False
        self.tokens -= 1
        return True


class Rates:
    """Token buckets, shared by all consoles."""

    def __init__(self, deadline_pool: DeadlinePool) -> None:
        self._breaker = CircuitBreaker(deadline_pool, LONGEST)
        self._leases: dict[tuple[str, str, float], _Lease] = {}

    async def take(self, tenant: str, kind: str, rate: float) -> bool:
        """Take a token, if there is one."""
        lease = self._leases.setdefault((tenant, kind, rate), _Lease(TokenBucket(rate, waited=1.0)))
        if lease.take(time.monotonic()):
            return True
        async with lease.asking:
            return lease.take(time.monotonic()) or await self._renewed(lease, tenant, kind, rate)

    async def _renewed(self, lease: _Lease, tenant: str, kind: str, rate: float) -> bool:
        now = time.monotonic()
        if now < lease.empty_until:
            return False
        wanted = max(1, int(rate * _BATCH))
        granted = await self._breaker.ask(
            lambda session: take_tokens(session, tenant, kind, rate, wanted), lambda error: _tell(tenant, error)
        )
        if granted is None:
            return lease.local.take(now, 1) > 0
        lease.tokens, lease.ends = granted, now + _LEASE
        if not granted:
            # Nobody has to ask before there can be another token.
            lease.empty_until = now + 1 / rate
        return lease.take(now)


def _tell(tenant: str, error: Exception) -> None:
    _log.warning("console.limits_not_shared", tenant_id=tenant, error_type=type(error).__name__, error=str(error))


@dataclass
class _Count:
    """How many runs of a tenant are open in Temporal, and how many were started here since."""

    count: int = 0
    started: int = 0
    at: float = -_GONE
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    behind: asyncio.Task[None] | None = None

    @property
    def open(self) -> int:
        return self.count + self.started


class OpenRuns:
    """Count tenants' open runs: a start waits for the count only near the limit."""

    def __init__(self, temporal: Callable[[], Awaitable[Client]]) -> None:
        self._temporal = temporal
        self._counts: dict[str, _Count] = {}

    async def add(self, tenant: str, most: int) -> bool:
        """Count a run that is about to start, unless the limit is reached."""
        known = self._counts.setdefault(tenant, _Count())
        age = time.monotonic() - known.at
        if age > _GONE or (age > _FRESH and known.open >= most * _NEAR):
            await self._ask(tenant, known, age)
        elif age > _STALE and known.behind is None:
            known.behind = asyncio.create_task(self._ask_behind(tenant, known, age))
        if known.open >= most:
            return False
        known.started += 1
        return True

    async def _ask_behind(self, tenant: str, known: _Count, age: float) -> None:
        try:
            await self._ask(tenant, known, age)
        finally:
            known.behind = None

    async def _ask(self, tenant: str, known: _Count, age: float) -> None:
        async with known.asking:
            if time.monotonic() - known.at < age:
                # Another request has counted meanwhile.
                return
            query = runs_query(tenant=tenant, status=None, pipeline=None) + " AND ExecutionStatus = 'Running'"
            try:
                answer = await (await self._temporal()).count_workflows(query, rpc_timeout=LONGEST)
            except (RPCError, Unavailable) as error:
                # The start itself will report what is wrong with Temporal.
                _log.warning("console.runs_not_counted", tenant_id=tenant, error=str(error))
            else:
                known.count, known.started = answer.count, 0
            known.at = time.monotonic()


class TenantLimits:
    """Refuse with 429 what exceeds a tenant's limits."""

    def __init__(
        self, settings: Settings, database: Database, temporal: Callable[[], Awaitable[Client]], metrics: RequestMetrics
    ) -> None:
        self._settings = settings
        self._pool = database.pool
        self._rates = Rates(database.deadline_pool)
        self._releases: set[asyncio.Task[None]] = set()
        self._open_runs = OpenRuns(temporal)
        self._metrics = metrics

    async def start(self, tenant: str) -> None:
        """Count a start."""
        limits = self._settings.limits_of(tenant)
        await self._rate("starts", tenant, limits.starts, "started more than {:g} runs a second")
        if limits.open_runs is not None and not await self._open_runs.add(tenant, limits.open_runs):
            raise self._exceeded("open_runs", tenant, f"{limits.open_runs} open runs", 5)

    async def list(self, tenant: str | None) -> None:
        """Count a list query. An owner's, which cover all tenants, are not counted."""
        if tenant is not None:
            rate = self._settings.limits_of(tenant).lists
            await self._rate("lists", tenant, rate, "asked for more than {:g} lists a second")

    async def stream(self, tenant: str | None, stream: UUID) -> None:
        """Count an open stream; called repeatedly while it is open."""
        most = self._settings.limits_of(tenant).streams if tenant is not None else None
        if tenant is None or most is None:
            return
        if not await hold_stream(await self._pool(), tenant, stream, most, _STREAM_LASTS):
            raise self._exceeded("streams", tenant, f"{most} open streams", 15)

    def stream_ended(self, tenant: str | None, stream: UUID) -> None:
        """Release the place of a stream. If that fails, it expires a little later."""
        if tenant is not None:
            # A separate task: the caller has been canceled.
            task = asyncio.create_task(self._release(tenant, stream))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def _release(self, tenant: str, stream: UUID) -> None:
        with contextlib.suppress(*DATABASE_ERRORS):
            await release_stream(await self._pool(), tenant, stream)

    async def close(self) -> None:
        """Wait for what is under way."""
        await asyncio.gather(*self._releases)

    async def _rate(self, kind: str, tenant: str, rate: float | None, what: str) -> None:
        if rate is not None and not await self._rates.take(tenant, kind, rate):
            raise self._exceeded(kind, tenant, what.format(rate), math.ceil(1 / rate))

    def _exceeded(self, limit: str, tenant: str, what: str, wait: int) -> Refusal:
        self._metrics.refused(limit)
        return exceeded(limit, tenant, what, wait)
