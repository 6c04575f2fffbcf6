"""How many dead letters there are, over all tenants: for gauges, from the counters that are kept."""

from datetime import timedelta
from typing import Final

from store.tenancy import Pool, reading

_COUNTS: Final = "SELECT status, sum(count)::bigint AS count FROM dead_letter_counts GROUP BY status"
_OLDEST: Final = """
    SELECT coalesce(now() - min(first_failed_at), interval '0') FROM dead_letters
    WHERE status IN ('pending', 'replaying') AND version > 0
"""


async def stock(pool: Pool) -> tuple[dict[str, int], timedelta]:
    """Return the number of dead letters by status, and the age of the oldest open one."""
    async with reading(pool, None) as connection:
        rows = await connection.fetch(_COUNTS)
        oldest: timedelta = await connection.fetchval(_OLDEST)
    return {row["status"]: row["count"] for row in rows}, oldest
