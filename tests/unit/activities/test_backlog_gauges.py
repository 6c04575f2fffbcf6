"""The gauges of the backlog while the database is down."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from redrive.activities import worker_health
from redrive.activities.worker_health import keep_gauges
from redrive.errors import Unavailable
from redrive.metrics import Metrics
from redrive.postgres.database import Database
from redrive.postgres.tenancy import Pool
from tests.conftest import eventually


class _Down(Database):
    """A database that does not answer, and counts who asks."""

    def __init__(self, error: Exception) -> None:
        super().__init__("postgresql://nobody@localhost/none")
        self._error = error
        self.asked = 0

    async def pool(self) -> Pool:
        self.asked += 1
        raise self._error


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.InterfaceError("pool is closing"),
        asyncpg.InternalClientError("got result for unknown protocol state"),
        asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
        ConnectionRefusedError(),
        TimeoutError(),
        Unavailable("the database cannot be reached"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_gauges_are_read_again_after_an_error(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the driver raises, the next reading follows."""
    monkeypatch.setattr(worker_health, "GAUGE_INTERVAL", timedelta(milliseconds=1))
    database = _Down(error)
    gauges = asyncio.create_task(keep_gauges(database, Metrics()))

    async def asked_again() -> bool:
        return database.asked > 1 or gauges.done()

    await eventually(asked_again)
    assert not gauges.done()
    gauges.cancel()
