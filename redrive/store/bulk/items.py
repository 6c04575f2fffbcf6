"""The items of a bulk operation: claimed, answered, settled. Each write can be repeated."""

from datetime import timedelta
from typing import Final

from pydantic import BaseModel

from redrive.bulk import BulkProgress, ItemStatus, item_request_id
from redrive.dead_letters import LetterId
from redrive.postgres.tenancy import Pool, transaction
from redrive.postgres.values import clean
from redrive.store.bulk.operations import progress

# How long a dead letter may not answer before its item is abandoned; its command may still be carried out.
TIMEOUT: Final = timedelta(minutes=15)
WHY_SHOWN: Final = 500

# Materialized: inside IN (...) the planner may run it again for each row, and take more than its limit.
_CLAIM: Final = """
    WITH next AS MATERIALIZED (
        SELECT item.position FROM bulk_items AS item JOIN bulk_operations AS bulk
            ON (bulk.tenant, bulk.id) = (item.tenant, item.bulk_id)
        WHERE item.tenant = $1 AND item.bulk_id = $2 AND item.status = 'PENDING' AND bulk.status = 'RUNNING'
        ORDER BY item.position LIMIT $3 FOR UPDATE OF item
    ), sent AS (
        UPDATE bulk_operations SET last_sent_at = clock_timestamp()
        WHERE tenant = $1 AND id = $2 AND EXISTS (SELECT FROM next)
    )
    UPDATE bulk_items AS item SET status = 'SENDING', sent_at = now(), updated_at = now()
    FROM next WHERE item.tenant = $1 AND item.bulk_id = $2 AND item.position = next.position
"""
_SENDING: Final = """
    SELECT position, letter_id, run_id, step FROM bulk_items
    WHERE tenant = $1 AND bulk_id = $2 AND status = 'SENDING' AND position <> ALL($3::integer[])
    ORDER BY position
"""
_SETTLE: Final = """
    UPDATE bulk_items AS item SET updated_at = now(),
        status = CASE WHEN letter.cycle = item.cycle AND letter.status = 'replayed' THEN 'APPLIED' ELSE 'FAILED' END,
        why = CASE
            WHEN letter.cycle > item.cycle
                THEN left('exhausted again: ' || letter.category || ': ' || letter.message, $3)
            WHEN letter.status = 'replayed' THEN 'replayed'
            WHEN letter.blocked_by IS NOT NULL THEN 'the earlier step ' || letter.blocked_by || ' is dead now'
            WHEN letter.orphaned THEN 'the run is gone'
            ELSE 'the dead letter is ' || letter.status
        END
    FROM dead_letters AS letter
    WHERE item.tenant = $1 AND item.bulk_id = $2 AND item.status = 'ACCEPTED' AND letter.id = item.letter_id
        AND (letter.cycle > item.cycle OR letter.status <> 'replaying')
    RETURNING item.status
"""
_ACCEPTED: Final = """
    UPDATE bulk_items SET status = $4, why = $5, updated_at = now(), cycle = (
        SELECT (before ->> 'cycle')::integer FROM audit_log
        WHERE tenant = $1 AND dead_letter = $6 AND request_id = $7
            AND action IN ('replay_requested', 'resolved', 'discarded', 'restarted', 'refused'))
    WHERE tenant = $1 AND bulk_id = $2 AND position = $3 AND status = 'SENDING'
"""
_ENDED: Final = """
    UPDATE bulk_items SET status = $4, why = $5, updated_at = now()
    WHERE tenant = $1 AND bulk_id = $2 AND position = $3 AND status = 'SENDING'
"""
_UNANSWERED: Final = """
    UPDATE bulk_items SET why = $4, updated_at = now(),
        status = CASE WHEN now() - sent_at > $5 THEN 'FAILED' ELSE status END
    WHERE tenant = $1 AND bulk_id = $2 AND position = $3 AND status = 'SENDING' RETURNING status
"""


class SentItem(BaseModel):
    """An item whose command is to be sent, perhaps again."""

    tenant: str
    bulk_id: str
    position: int
    letter_id: str
    run_id: str
    step: str

    @property
    def letter(self) -> LetterId:
        """The dead letter of the item."""
        return LetterId(tenant=self.tenant, run_id=self.run_id, step=self.step)


async def settle(pool: Pool, tenant: str, bulk_id: str) -> tuple[BulkProgress, list[ItemStatus]]:
    """Record the outcomes that are known by now. Return the progress, and how the items settled just now ended."""
    async with transaction(pool, tenant) as connection:
        rows = await connection.fetch(_SETTLE, tenant, bulk_id, WHY_SHOWN)
        return await progress(connection, tenant, bulk_id), [ItemStatus(row["status"]) for row in rows]


async def claim(pool: Pool, tenant: str, bulk_id: str, *, room: int, known: set[int]) -> list[SentItem]:
    """Take up to this many of the next items, and those that somebody took and never finished.

    `known` are the positions of those that the caller is already sending.
    """
    async with transaction(pool, tenant) as connection:
        if room:
            await connection.execute(_CLAIM, tenant, bulk_id, room)
        rows = await connection.fetch(_SENDING, tenant, bulk_id, sorted(known))
    return [SentItem(tenant=tenant, bulk_id=bulk_id, **dict(row)) for row in rows]


async def put_accepted(pool: Pool, item: SentItem, status: ItemStatus, why: str) -> None:
    """Record that the dead letter accepted the command: APPLIED at once, or ACCEPTED until the outcome is known."""
    request_id = item_request_id(item.bulk_id, item.letter_id)
    async with transaction(pool, item.tenant) as connection:
        await connection.execute(_ACCEPTED, *_key(item), status.value, clean(why), item.letter_id, request_id)


async def put_skipped(pool: Pool, item: SentItem, why: str) -> None:
    """Record that the dead letter refused the command."""
    async with transaction(pool, item.tenant) as connection:
        await connection.execute(_ENDED, *_key(item), ItemStatus.SKIPPED.value, clean(why)[:WHY_SHOWN])


async def put_unanswered(pool: Pool, item: SentItem, why: str) -> bool:
    """Record that a command got no answer, and return whether its item is abandoned now."""
    async with transaction(pool, item.tenant) as connection:
        status = await connection.fetchval(_UNANSWERED, *_key(item), clean(why)[:WHY_SHOWN], TIMEOUT)
    return bool(status == ItemStatus.FAILED)


def _key(item: SentItem) -> tuple[str, str, int]:
    return item.tenant, item.bulk_id, item.position
