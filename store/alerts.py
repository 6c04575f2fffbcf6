"""When to alert: once for all failures that look alike within a time, with how many there were."""

from datetime import timedelta
from typing import Final

from store.tenancy import Pool, transaction

WINDOW: Final = timedelta(minutes=10)

_COUNT: Final = """
    INSERT INTO alerts AS known (tenant, fingerprint, count, sent_at) VALUES ($1, $2, 1, now())
    ON CONFLICT (tenant, fingerprint) DO UPDATE SET count = known.count + 1
    RETURNING count, sent_at < now() - $3::interval OR xmax = 0 AS due
"""


async def due(pool: Pool, tenant: str, fingerprint: str) -> int:
    """Count a failure. Return how many there were since the last alert when a new one is due, else 0."""
    async with transaction(pool, tenant) as connection:
        row = await connection.fetchrow(_COUNT, tenant, fingerprint, WINDOW)
        if row is None or not row["due"]:
            return 0
        await connection.execute(
            "UPDATE alerts SET count = 0, sent_at = now() WHERE tenant = $1 AND fingerprint = $2", tenant, fingerprint
        )
        return int(row["count"])
