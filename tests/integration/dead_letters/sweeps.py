"""The sweep of the workers' schedule, now."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from temporalio.testing import ActivityEnvironment

from redrive.activities.maintenance import KeyActivities
from redrive.connection import database_url
from redrive.postgres.database import Database
from redrive.redaction.redactor import Redactor
from redrive.settings import Settings
from tests.alerts import SILENT
from tests.integration.dead_letters.lab import Case

# By count, not by time: runs that other tests have left make a sweep long.
SWEEPS: Final = 30
# Temporal's list may not have seen an end when the first sweep asks.
PAUSE: Final = 1.0


async def sweep(case: Case, chosen: Settings, quiet: timedelta = timedelta(0)) -> None:
    """Do what the workers' schedule does every minute; what has changed since this long is left alone."""
    async with Database(database_url(chosen), max_size=2) as database:
        activities = KeyActivities(case.temporal, database, Redactor(), SILENT, quiet=quiet)
        await ActivityEnvironment().run(activities.expire_keys)


async def sweep_until(is_right: Callable[[], Awaitable[bool]], case: Case, chosen: Settings) -> None:
    """Sweep until all is right, or often enough."""
    for _ in range(SWEEPS):
        if await is_right():
            return
        await sweep(case, chosen)
        await asyncio.sleep(PAUSE)
