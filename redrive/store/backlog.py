"""The numbers of dead letters and retries over all tenants, for gauges."""

from datetime import timedelta
from typing import Final, NamedTuple

from redrive.postgres.tenancy import Pool, reading

_COUNTS: Final = "SELECT status, sum(count)::bigint AS count FROM dead_letter_counts GROUP BY status"
_OLDEST: Final = """
    SELECT coalesce(now() - min(first_failed_at), interval '0') FROM dead_letters
    WHERE status IN ('pending', 'replaying') AND version > 0
"""
_RETRYING: Final = "SELECT count(*) FROM retrying WHERE expires_at > now()"


class Backlog(NamedTuple):
    """The dead letters by status, the age of the oldest open one, and the steps in retry."""

    letters: dict[str, int]
    oldest: timedelta
    retrying: int


async def backlog(pool: Pool) -> Backlog:
    """Return the backlog."""
    async with reading(pool, None) as connection:
        rows = await connection.fetch(_COUNTS)
        oldest: timedelta = await connection.fetchval(_OLDEST)
        retrying: int = await connection.fetchval(_RETRYING)
    return Backlog({row["status"]: row["count"] for row in rows}, oldest, retrying)
