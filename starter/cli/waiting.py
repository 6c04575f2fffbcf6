"""How commands wait: they ask again and again, also while a server restarts."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redrive.errors import Unavailable

T = TypeVar("T")
INTERVAL = 0.25
# A restarting server is back before this; a wait should outlast it as the run does.
OUTAGE_TIMEOUT = 60.0


async def until_answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Return the answer, however often the server or the database must be asked."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + OUTAGE_TIMEOUT
    while True:
        try:
            return await ask()
        except Unavailable:
            if loop.time() > give_up:
                raise
        await asyncio.sleep(INTERVAL)
