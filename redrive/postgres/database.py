"""The database of a process: connected on first use, so that only its users wait for it."""

import asyncio
from typing import Final

from redrive.errors import Unavailable
from redrive.postgres.connection import DRIVER_ERRORS
from redrive.postgres.deadline_pool import DeadlinePool
from redrive.postgres.pool import APP_ROLE, open_pool
from redrive.postgres.tenancy import Pool

_CLOSE_TIMEOUT = 5.0
# Each connection answers a thousand queries a second.
_DEADLINE_POOL_SIZE: Final = 2
# What an unavailable database raises: a pool that cannot be opened, or a statement.
DATABASE_ERRORS: Final = (*DRIVER_ERRORS, Unavailable)


class Database:
    """Open the pool on first use; if that fails, the next use tries again. `deadline_pool` serves impatient callers."""

    def __init__(self, url: str, *, max_size: int = 10, role: str = APP_ROLE) -> None:
        self._url = url
        self._role = role
        self._max_size = max_size
        self.deadline_pool = DeadlinePool(url, _DEADLINE_POOL_SIZE)
        self._pool: Pool | None = None
        self._opening = asyncio.Lock()

    async def pool(self) -> Pool:
        """Return the pool, or raise `Unavailable`."""
        if self._pool is None:
            async with self._opening:
                if self._pool is None:
                    self._pool = await open_pool(self._url, max_size=self._max_size, role=self._role)
        return self._pool

    async def close(self) -> None:
        """Close all connections, terminating those that are still busy after a while."""
        self.deadline_pool.close()
        # Wait for a pool that is being opened: it would stay open.
        async with self._opening:
            pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            await asyncio.wait_for(pool.close(), timeout=_CLOSE_TIMEOUT)
        except TimeoutError:
            pool.terminate()

    async def __aenter__(self) -> "Database":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
