"""Messages that wait for their next retry: stored in batches, taken when due, removed or put back in batches.

Times are the database's own: a process with a wrong clock sends nothing too early. A batch stays locked for its taker
until the transaction ends, so that a process that dies blocks nothing.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import asyncpg

from redrive.contracts import MIB
from redrive.postgres.tenancy import Connection, Pool, transaction

# The maximum size of the payloads in a batch.
BATCH_BYTES: Final = 16 * MIB
_PUT: Final = """
    INSERT INTO retry_queue AS known (tenant, message_id, original_payload, original_queue, error_reason, retry_count,
                                      max_retries, next_retry_at)
    SELECT $1, message_id, payload, queue, reason, retry_count, max_retries, greatest(now() + delay, not_before)
    FROM unnest($2::uuid[], $3::bytea[], $4::text[], $5::text[], $6::integer[], $7::integer[], $8::interval[],
                $9::timestamptz[])
        AS given (message_id, payload, queue, reason, retry_count, max_retries, delay, not_before)
    ON CONFLICT (tenant, message_id) DO UPDATE SET
        original_payload = excluded.original_payload, original_queue = excluded.original_queue,
        error_reason = excluded.error_reason, retry_count = excluded.retry_count, max_retries = excluded.max_retries,
        next_retry_at = excluded.next_retry_at
    -- The same retry again is a duplicate; a later one means that this one was made.
    WHERE known.status = 'pending' AND known.retry_count < excluded.retry_count
    RETURNING original_queue
"""
# The sizes are known without reading the payloads. Those beyond the last one that fits are locked, and left.
_TAKE: Final = """
    WITH due AS MATERIALIZED (
        SELECT id, message_id, original_payload, original_queue, error_reason, retry_count, max_retries, status,
               next_retry_at
        FROM retry_queue WHERE tenant = $1 AND next_retry_at <= now()
        ORDER BY next_retry_at LIMIT $2 FOR UPDATE SKIP LOCKED
    ), sized AS (
        SELECT *, sum(octet_length(original_payload)) OVER (ORDER BY next_retry_at, id) AS up_to,
               row_number() OVER (ORDER BY next_retry_at, id) AS place
        FROM due
    )
    SELECT id, message_id, original_payload, original_queue, error_reason, retry_count, max_retries, status
    FROM sized WHERE place = 1 OR up_to <= $3 ORDER BY next_retry_at, id
"""
_REMOVE: Final = """
    DELETE FROM retry_queue WHERE id = ANY($1)
    RETURNING original_queue, status, message_id, extract(epoch FROM clock_timestamp() - next_retry_at)::float8 AS drift
"""
_PUT_BACK: Final = """
    UPDATE retry_queue AS known
    SET retry_count = known.retry_count + 1, error_reason = given.reason,
        next_retry_at = clock_timestamp() + given.delay
    FROM unnest($1::bigint[], $2::text[], $3::interval[]) AS given (id, reason, delay) WHERE known.id = given.id
"""


@dataclass(frozen=True, kw_only=True)
class NewRetry:
    """A message to be sent again after a delay, and not before a time if it names one."""

    message_id: UUID
    original_payload: bytes
    original_queue: str
    error_reason: str
    retry_count: int
    max_retries: int
    delay: timedelta
    not_before: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class DueRetry:
    """A message that is due."""

    id: int
    message_id: UUID
    original_payload: bytes
    original_queue: str
    error_reason: str
    retry_count: int
    max_retries: int
    status: str

    @property
    def exhausted(self) -> bool:
        """Tell whether all retries are used up."""
        return self.retry_count >= self.max_retries


@dataclass(frozen=True, kw_only=True)
class PutBack:
    """A message that could not be sent: why, and when to try again."""

    id: int
    reason: str
    delay: timedelta


@dataclass(frozen=True)
class Sent:
    """A message that has left the table, and how late it was sent."""

    queue: str
    message_id: UUID
    was_replay: bool
    drift: timedelta


async def put_retries(connection: Connection, tenant: str, retries: Sequence[NewRetry]) -> Counter[str]:
    """Store messages in one statement and return how many were new, by queue. Duplicates change nothing."""
    latest: dict[UUID, NewRetry] = {}
    # Sorted by id, so that two writers never deadlock.
    for retry in sorted(retries, key=lambda each: (each.message_id, each.retry_count)):
        latest[retry.message_id] = retry
    rows = list(latest.values())
    stored = await connection.fetch(
        _PUT,
        tenant,
        [row.message_id for row in rows],
        [row.original_payload for row in rows],
        [row.original_queue for row in rows],
        [row.error_reason for row in rows],
        [row.retry_count for row in rows],
        [row.max_retries for row in rows],
        [row.delay for row in rows],
        [row.not_before for row in rows],
    )
    return Counter(row["original_queue"] for row in stored)


async def take_due(connection: Connection, tenant: str, limit: int, most_bytes: int = BATCH_BYTES) -> list[DueRetry]:
    """Lock the due messages, the oldest first, until the transaction ends. Those of other takers are left.

    As many as have `most_bytes` of payloads together, and at least one.
    """
    return [DueRetry(**row) for row in await connection.fetch(_TAKE, tenant, limit, most_bytes)]


async def remove(connection: Connection, ids: Sequence[int]) -> list[Sent]:
    """Remove messages that were sent."""
    rows: list[asyncpg.Record] = await connection.fetch(_REMOVE, ids)
    return [
        Sent(
            queue=row["original_queue"],
            message_id=row["message_id"],
            was_replay=row["status"] == "replaying",
            drift=timedelta(seconds=row["drift"]),
        )
        for row in rows
    ]


async def put_back(connection: Connection, rows: Sequence[PutBack]) -> None:
    """Count a failed retry, and let the messages wait again."""
    await connection.execute(
        _PUT_BACK, [row.id for row in rows], [row.reason for row in rows], [row.delay for row in rows]
    )


async def depth(pool: Pool, tenant: str) -> int:
    """Count the messages that wait."""
    async with transaction(pool, tenant) as connection:
        count: int = await connection.fetchval("SELECT count(*) FROM retry_queue WHERE tenant = $1", tenant)
    return count
