"""The items of a bulk operation: claimed, answered, settled. Each write can be repeated."""

from datetime import timedelta
from typing import Final, NamedTuple

from pydantic import BaseModel

from redrive.bulk import BulkProgress, ItemStatus, item_request_id
from redrive.dead_letters import LetterId
from redrive.postgres.tenancy import Pool, transaction
from redrive.postgres.values import clean
from redrive.store.bulk.lists import progress

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
# What the audit log has answered since: see `item_request_id`.
_ANSWERED: Final = """
    UPDATE bulk_items AS item SET updated_at = now(), cycle = (entry.before ->> 'cycle')::integer,
        status = CASE entry.action
            WHEN 'refused' THEN 'SKIPPED' WHEN 'replay_requested' THEN 'ACCEPTED' ELSE 'APPLIED'
        END,
        why = left(entry.after -> 'answer' ->> 'message', $3)
    FROM audit_log AS entry
    WHERE item.tenant = $1 AND item.bulk_id = $2 AND item.status = 'SENDING'
        AND entry.tenant = item.tenant AND entry.dead_letter = item.letter_id
        AND entry.request_id = $2 || ':' || left(encode(sha256(convert_to(item.letter_id, 'UTF8')), 'hex'), 16)
        AND entry.action IN ('replay_requested', 'resolved', 'discarded', 'restarted', 'refused')
    RETURNING item.position, item.status
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
    WHERE tenant = $1 AND bulk_id = $2 AND position = $3 AND status = 'SENDING' RETURNING position
"""
_ENDED: Final = """
    UPDATE bulk_items SET status = $4, why = $5, updated_at = now()
    WHERE tenant = $1 AND bulk_id = $2 AND position = $3 AND status = 'SENDING' RETURNING position
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


class Settled(NamedTuple):
    """What has become known of items: the progress, which ones were answered just now, and how those ended that did."""

    progress: BulkProgress
    answered: list[int]
    ended: list[ItemStatus]


async def settle(pool: Pool, tenant: str, bulk_id: str) -> Settled:
    """Record the answers and outcomes that are known by now."""
    async with transaction(pool, tenant) as connection:
        answers = await connection.fetch(_ANSWERED, tenant, bulk_id, WHY_SHOWN)
        outcomes = await connection.fetch(_SETTLE, tenant, bulk_id, WHY_SHOWN)
        statuses = [ItemStatus(row["status"]) for row in (*answers, *outcomes)]
        return Settled(
            await progress(connection, tenant, bulk_id),
            [row["position"] for row in answers],
            [status for status in statuses if status is not ItemStatus.ACCEPTED],
        )


async def claim(pool: Pool, tenant: str, bulk_id: str, *, room: int, known: set[int]) -> list[SentItem]:
    """Take up to this many of the next items, and those that somebody took and never finished.

    `known` are the positions of those that the caller is already sending.
    """
    async with transaction(pool, tenant) as connection:
        if room:
            await connection.execute(_CLAIM, tenant, bulk_id, room)
        rows = await connection.fetch(_SENDING, tenant, bulk_id, sorted(known))
    return [SentItem(tenant=tenant, bulk_id=bulk_id, **dict(row)) for row in rows]


async def put_accepted(pool: Pool, item: SentItem, status: ItemStatus, why: str) -> bool:
    """Record that the dead letter accepted the command: APPLIED at once, or ACCEPTED until the outcome is known.

    Return whether that is new.
    """
    request_id = item_request_id(item.bulk_id, item.letter_id)
    async with transaction(pool, item.tenant) as connection:
        given = (*_key(item), status.value, clean(why), item.letter_id, request_id)
        return await connection.fetchval(_ACCEPTED, *given) is not None


async def put_skipped(pool: Pool, item: SentItem, why: str) -> bool:
    """Record that the dead letter refused the command, and return whether that is new."""
    async with transaction(pool, item.tenant) as connection:
        given = (*_key(item), ItemStatus.SKIPPED.value, clean(why)[:WHY_SHOWN])
        return await connection.fetchval(_ENDED, *given) is not None


async def put_unanswered(pool: Pool, item: SentItem, why: str) -> bool:
    """Record that a command got no answer, and return whether its item is abandoned now."""
    async with transaction(pool, item.tenant) as connection:
        status = await connection.fetchval(_UNANSWERED, *_key(item), clean(why)[:WHY_SHOWN], TIMEOUT)
    return bool(status == ItemStatus.FAILED)


def _key(item: SentItem) -> tuple[str, str, int]:
    return item.tenant, item.bulk_id, item.position
