"""When to alert: once for all failures that look alike within a time, with how many there were."""

from datetime import timedelta
from typing import Final

from store.tenancy import Pool, transaction

WINDOW: Final = timedelta(minutes=10)


async def due(pool: Pool, tenant: str, fingerprint: str) -> int:
    """Count a failure. Return how many there were since the last alert when a new one is due, else 0."""
    async with transaction(pool, tenant) as connection:
        count: int = await connection.fetchval("SELECT count_alert($1, $2, $3)", tenant, fingerprint, WINDOW)
        return count
