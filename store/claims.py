"""Idempotency keys in Postgres, for callers: quick, or not at all. A start never waits long for the database."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, TypeVar

import asyncpg

from redrive.claims import Claim, ClaimRequest, Settlement, without_secrets
from redrive.errors import Unavailable
from redrive.logs import get_logger
from redrive.redaction import Redactor
from store.database import Database
from store.keys import claim_key, release_key, settle_key
from store.tenancy import Pool

T = TypeVar("T")

PATIENCE: Final = 3.0
# After a failure, so long nobody asks; then one caller tries, and the others go on without.
PAUSE: Final = 5.0
_AWAY: Final = (Unavailable, asyncpg.PostgresError, asyncpg.InterfaceError, OSError)

log = get_logger(__name__)


class PostgresClaims:
    """Keep keys in a database, and go on without it while it is away."""

    def __init__(
        self, database_url: str, *, free_failed: bool = False, redactor: Redactor | None = None, max_size: int = 10
    ) -> None:
        self._database = Database(database_url, max_size=max_size, tidy=False)
        self._free_failed = free_failed
        self._redactor = redactor or Redactor()
        self._asked_again_at = 0.0

    async def claim(self, request: ClaimRequest) -> Claim | None:
        """Take the key, or say what is there; None when the database did not answer in time."""
        return await self._asked(request, lambda pool: claim_key(pool, request, free_failed=self._free_failed))

    async def release(self, request: ClaimRequest) -> None:
        """Give back a key that was claimed for a start that was refused."""
        await self._asked(request, lambda pool: release_key(pool, request))

    async def settle(self, request: ClaimRequest, settlement: Settlement) -> None:
        """Write how the run of the key ended, where the worker's own word about it was lost."""
        stored = without_secrets(settlement, self._redactor)
        await self._asked(request, lambda pool: settle_key(pool, request, stored))

    async def close(self) -> None:
        """Close the connections."""
        await self._database.close()

    async def _asked(self, request: ClaimRequest, ask: Callable[[Pool], Awaitable[T]]) -> T | None:
        now = time.monotonic()
        if now < self._asked_again_at:
            return None
        if self._asked_again_at:
            # This caller tries; the others do not wait with it.
            self._asked_again_at = now + PAUSE
        try:
            answer = await _in_time(self._ask(ask))
        except _AWAY as error:
            self._asked_again_at = time.monotonic() + PAUSE
            log.warning(
                "key.store_away",
                tenant_id=request.tenant,
                run_id=request.run_id,
                idempotency_key=request.key,
                error_type=type(error).__name__,
                error=str(error),
            )
            return None
        self._asked_again_at = 0.0
        return answer

    async def _ask(self, ask: Callable[[Pool], Awaitable[T]]) -> T:
        return await ask(await self._database.pool())


async def _in_time(work: Coroutine[None, None, T]) -> T:
    """Return what the work returns, or raise TimeoutError at once: not when the driver is done with giving up."""
    task = asyncio.create_task(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=PATIENCE)
    finally:
        if not task.done():
            task.cancel()
            task.add_done_callback(_forget)
    if not done:
        raise TimeoutError(f"no answer within {PATIENCE:g} s")
    return task.result()


def _forget(task: asyncio.Task[T]) -> None:
    """Take note of how a task ended that nobody waits for."""
    if not task.cancelled():
        task.exception()
