"""What tests ask databases, again and again while they wait: by connections that are kept."""

from typing import Any

import asyncpg

AT_ONCE = 4

_pools: dict[str, "asyncpg.Pool[asyncpg.Record]"] = {}


async def fetch(url: str, query: str, *arguments: object) -> list[dict[str, Any]]:
    """Execute a statement, and return its rows."""
    if url not in _pools:
        _pools[url] = asyncpg.create_pool(url, min_size=0, max_size=AT_ONCE)
    pool = await _pools[url]
    return [dict(row) for row in await pool.fetch(query, *arguments)]


async def close_connections() -> None:
    """Close all connections."""
    while _pools:
        _, pool = _pools.popitem()
        await pool.close()
