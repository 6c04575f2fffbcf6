"""The record of a projector, written by a step of an event's run that succeeded.

A final failure is written with its dead letter, by the database itself.
"""

import asyncio
from datetime import timedelta

from redrive.contracts import StepInput
from redrive.errors import RedriveError
from redrive.logs import get_logger
from redrive.postgres.database import DATABASE_ERRORS, Database
from redrive.store.events.records import put_projection

TIMEOUT = timedelta(seconds=1)

log = get_logger(__name__)


async def write_projection(database: Database, given: StepInput, attempt: int, took: timedelta) -> None:
    """Record that a projector succeeded. No run waits for the database: a replay of the projector also writes it."""
    try:
        async with asyncio.timeout(TIMEOUT.total_seconds()):
            await put_projection(await database.pool(), given, attempt, took)
    except (RedriveError, *DATABASE_ERRORS) as error:
        log.warning("projection.not_recorded", error_type=type(error).__name__, error=str(error))
