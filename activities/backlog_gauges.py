"""Gauges of the backlog: dead letters and retries, read from Postgres at intervals."""

import asyncio
from datetime import timedelta

from redrive.errors import RedriveError
from redrive.logs import get_logger
from redrive.metrics import Metrics
from redrive.postgres.database import DATABASE_ERRORS, Database
from redrive.store.dead_letters.figures import backlog

log = get_logger(__name__)

INTERVAL = timedelta(seconds=15)


async def keep_gauges(database: Database, metrics: Metrics) -> None:
    """Update the gauges while the worker runs; while the database is down they keep their last values."""
    while True:
        try:
            metrics.backlog(*await backlog(await database.pool()))
        except (RedriveError, *DATABASE_ERRORS) as error:
            log.warning("worker.gauges_stale", error=str(error), error_type=type(error).__name__)
        await asyncio.sleep(INTERVAL.total_seconds())
