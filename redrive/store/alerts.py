"""Alerts: one for all similar failures within a window; suppressed failures are reported at its end."""

from datetime import datetime
from typing import Final

from redrive.postgres.tenancy import Pool, transaction

_TAKE: Final = """
    UPDATE alerts SET told = count, told_of = sent_at, count = 0, sent_at = now()
    WHERE tenant = $1 AND fingerprint = $2 AND sent_at = $3 AND count > 0
"""
_TOLD: Final = "SELECT told FROM alerts WHERE tenant = $1 AND fingerprint = $2 AND told_of = $3"


async def last_sent(pool: Pool, tenant: str, fingerprint: str) -> datetime | None:
    """Return when an alert on failures like this was last sent."""
    async with transaction(pool, tenant) as connection:
        moment: datetime | None = await connection.fetchval(
            "SELECT sent_at FROM alerts WHERE tenant = $1 AND fingerprint = $2", tenant, fingerprint
        )
        return moment


async def take_suppressed(pool: Pool, tenant: str, fingerprint: str, since: datetime) -> int:
    """Return how many failures the alert of that moment suppressed; they count as reported now. Repeatable.

    0 if another alert has already reported them.
    """
    async with transaction(pool, tenant) as connection:
        await connection.execute(_TAKE, tenant, fingerprint, since)
        count: int | None = await connection.fetchval(_TOLD, tenant, fingerprint, since)
        return count or 0
