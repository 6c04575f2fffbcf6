"""How a bridge waits for what every message needs: its broker, the database, Temporal."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeVar

from redrive.logs import get_logger
from redrive.policy import Curve, FullJitter

# How often to retry a dependency that is unavailable.
OUTAGE: Final = Curve(base=timedelta(milliseconds=100), cap=timedelta(seconds=5), jitter=FullJitter(), max_attempts=1)
Result = TypeVar("Result")

log = get_logger(__name__)


class Stopping(Exception):
    """The bridge was told to stop while it waited for an unavailable dependency."""


class Outages:
    """Wait for dependencies, until the bridge is told to stop. `is_outage` tells which errors waiting may fix."""

    def __init__(self, source: str, stop: asyncio.Event, is_outage: Callable[[Exception], bool]) -> None:
        self._source = source
        self._stop = stop
        self._is_outage = is_outage

    async def until_done(self, who: str, act: Callable[[], Awaitable[Result]]) -> Result:
        """Do something; while a dependency is unavailable, log it once and wait. Raises what waiting cannot fix."""
        tries = 0
        while True:
            try:
                result = await act()
            except Exception as error:
                if not self._is_outage(error):
                    raise
                tries += 1
                if tries == 1:
                    log.warning("bridge.waiting", source=self._source, operation=who, error=said(error))
                await self.pause(OUTAGE.delay(tries, random.random()))  # noqa: S311  # jitter
            else:
                if tries:
                    log.info("bridge.back", source=self._source, operation=who, attempt=tries + 1)
                return result

    async def pause(self, delay: timedelta) -> None:
        """Wait, or raise `Stopping` when the bridge is told to stop."""
        try:
            async with asyncio.timeout(delay.total_seconds()):
                await self._stop.wait()
        except TimeoutError:
            return
        raise Stopping


def said(error: Exception) -> str:
    """Return an error as one line."""
    return f"{type(error).__name__}: {error}"
