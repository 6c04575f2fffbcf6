"""The sweep of the workers' schedule, once and now."""

from datetime import timedelta

from temporalio.testing import ActivityEnvironment

from redrive.activities.maintenance import KeyActivities
from redrive.connection import database_url
from redrive.postgres.database import Database
from redrive.redaction.redactor import Redactor
from redrive.settings import Settings
from tests.alerts import SILENT
from tests.integration.dead_letters.lab import Case


async def sweep(case: Case, chosen: Settings) -> None:
    """Do what the workers' schedule does every minute."""
    async with Database(database_url(chosen), max_size=2) as database:
        activities = KeyActivities(case.temporal, database, Redactor(), SILENT, quiet=timedelta(0))
        await ActivityEnvironment().run(activities.expire_keys)
