"""What tests ask databases, again and again while they wait: by connections that are kept."""

import asyncio
from typing import Any

import asyncpg

AT_ONCE = 4

# A connection belongs to the event loop that opened it.
_pools: dict[tuple[asyncio.AbstractEventLoop, str], "asyncpg.Pool[asyncpg.Record]"] = {}


async def fetch(url: str, query: str, *arguments: object) -> list[dict[str, Any]]:
    """Execute a statement, and return its rows."""
    place = (asyncio.get_running_loop(), url)
    if place not in _pools:
        _pools[place] = asyncpg.create_pool(url, min_size=0, max_size=AT_ONCE)
    pool = await _pools[place]
    return [dict(row) for row in await pool.fetch(query, *arguments)]


async def close_connections() -> None:
    """Close the connections of this loop."""
    loop = asyncio.get_running_loop()
    for place in [place for place in _pools if place[0] is loop]:
        await _pools.pop(place).close()
