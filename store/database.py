"""The database of a process: connected to when it is first needed, so that nothing waits for it that does not use it."""

import asyncio
import contextlib

from store.pool import open_pool
from store.tenancy import Pool


class Database:
    """Open the pool on first use; when that fails, the next use tries again."""

    def __init__(self, url: str, *, max_size: int = 10) -> None:
        self._url = url
        self._max_size = max_size
        self._pool: Pool | None = None
        self._opening = asyncio.Lock()

    async def pool(self) -> Pool:
        """Return the pool, or raise `Unavailable`."""
        if self._pool is None:
            async with self._opening:
                if self._pool is None:
                    self._pool = await open_pool(self._url, max_size=self._max_size)
        return self._pool

    async def close(self) -> None:
        """Close all connections."""
        if self._pool is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._pool.close(), timeout=5)

    async def __aenter__(self) -> "Database":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
