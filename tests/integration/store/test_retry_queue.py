"""The table of retries and the records of messages that were given up, on a real PostgreSQL."""

import uuid
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from redrive.dead_letters import Answer, Discard, Replay
from redrive.errors import InvalidInput
from redrive.postgres.tenancy import Pool, transaction
from redrive.store.messages.dead import (
    DeadMessage,
    MessageFilter,
    MessageStatus,
    NewDeadMessage,
    find_dead,
    list_dead,
    mark_replayed,
    parse_id,
    put_dead,
    read_payload,
    take_command,
)
from redrive.store.messages.retry_queue import NewRetry, PutBack, depth, put_back, put_retries, remove, take_due
from tests.integration.store.retries import new_dead, new_retry

NOTHING = timedelta(0)


async def put(pool: Pool, tenant: str, *retries: NewRetry) -> dict[str, int]:
    async with transaction(pool, tenant) as connection:
        return dict(await put_retries(connection, tenant, retries))


async def give_up(pool: Pool, tenant: str, *messages: NewDeadMessage) -> None:
    async with transaction(pool, tenant) as connection:
        await put_dead(connection, tenant, "retry.scheduled", messages)


async def command(pool: Pool, tenant: str, message_id: uuid.UUID, given: Replay | Discard) -> Answer:
    answer = await take_command(pool, tenant, message_id, given)
    assert answer is not None
    return answer


def replay(request_id: str = "one") -> Replay:
    return Replay(request_id=request_id, requested_by="ada", reason="mended")


async def the_only(pool: Pool, tenant: str) -> DeadMessage:
    (row,) = (await list_dead(pool, MessageFilter(tenant=tenant), 10)).rows
    return row


async def test_same_retry_is_one_row_and_a_later_one_replaces_it(pool: Pool, tenant: str) -> None:
    """The same or a lower count changes nothing, in one batch or in two; a higher one takes the row over."""
    one = uuid.uuid4()
    first = new_retry(message_id=one, retry_count=1, original_payload=b"first")
    assert await put(pool, tenant, first, first) == {"billing": 1}
    assert await put(pool, tenant, first, new_retry(message_id=one, retry_count=0)) == {}
    assert await put(pool, tenant, new_retry(message_id=one, retry_count=2, original_payload=b"second")) == {
        "billing": 1
    }
    async with transaction(pool, tenant) as connection:
        (row,) = await take_due(connection, tenant, 10)
    assert (row.retry_count, row.original_payload) == (2, b"second")


async def test_what_is_due_is_taken_by_one_taker_oldest_first(pool: Pool, tenant: str) -> None:
    """Two takers at once share what is due; what is not due is left; what is not removed can be taken again."""
    await put(pool, tenant, *(new_retry(original_payload=str(n).encode()) for n in range(4)))
    await put(pool, tenant, new_retry(delay=timedelta(hours=1)))
    later = datetime.now(UTC) + timedelta(hours=1)
    await put(pool, tenant, new_retry(not_before=later))
    async with transaction(pool, tenant) as one, transaction(pool, tenant) as other:
        mine, theirs = await take_due(one, tenant, 3), await take_due(other, tenant, 3)
        assert (len(mine), len(theirs)) == (3, 1)
        sent = await remove(one, [row.id for row in mine])
        assert {each.message_id for each in sent} == {row.message_id for row in mine}
        assert all(each.drift >= NOTHING and not each.was_replay for each in sent)
    async with transaction(pool, tenant) as again:
        assert [row.id for row in await take_due(again, tenant, 10)] == [theirs[0].id]
    assert await depth(pool, tenant) == 3


async def test_failed_try_is_counted_and_waits_again(pool: Pool, tenant: str) -> None:
    """It has the reason, one retry more, and is not due before its delay."""
    await put(pool, tenant, new_retry(max_retries=1))
    async with transaction(pool, tenant) as connection:
        (row,) = await take_due(connection, tenant, 1)
        assert not row.exhausted
        await put_back(connection, [PutBack(id=row.id, reason="no such queue", delay=NOTHING)])
    async with transaction(pool, tenant) as connection:
        (row,) = await take_due(connection, tenant, 1)
        assert (row.retry_count, row.error_reason, row.exhausted) == (1, "no such queue", True)
        await put_back(connection, [PutBack(id=row.id, reason="no such queue", delay=timedelta(hours=1))])
    async with transaction(pool, tenant) as connection:
        assert await take_due(connection, tenant, 1) == []


async def test_tenants_do_not_see_each_others_messages(pool: Pool, tenant: str) -> None:
    """Row level security hides rows and refuses to write foreign ones."""
    await put(pool, tenant, new_retry())
    await give_up(pool, tenant, new_dead())
    async with transaction(pool, "somebody-else") as connection:
        assert await take_due(connection, tenant, 10) == []
        assert await connection.fetch("SELECT * FROM dead_messages WHERE tenant = $1", tenant) == []
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await put_retries(connection, tenant, [new_retry()])


async def test_dead_message_is_recorded_once_and_opened_again(pool: Pool, tenant: str) -> None:
    """Given up twice while it is open it is one record; after it was closed it has a new cycle."""
    message = new_dead()
    await give_up(pool, tenant, message, message)
    await give_up(pool, tenant, message)
    assert (await the_only(pool, tenant)).cycle == 1
    await command(pool, tenant, message.message_id, Discard(request_id="d", requested_by="ada", reason="no use"))
    await give_up(pool, tenant, message)
    row = await the_only(pool, tenant)
    assert (row.cycle, row.status) == (2, MessageStatus.PENDING)
    assert await read_payload(pool, row) == b"order 7"
    assert await read_payload(pool, row, 5) == b"order"


async def test_replay_is_sent_once_however_often_it_is_ordered(pool: Pool, tenant: str) -> None:
    """The same request has the same answer; another one meanwhile is refused; the outcome closes the record."""
    message = new_dead(max_retries=0)
    await give_up(pool, tenant, message)
    first = await command(pool, tenant, message.message_id, replay())
    assert first.accepted
    assert await command(pool, tenant, message.message_id, replay()) == first
    other = await command(pool, tenant, message.message_id, replay("other"))
    assert (other.accepted, other.message) == (
        False,
        "the message is replaying: only one that is pending can be replayed",
    )
    # A late delivery of the same message must not turn the replay into something else.
    await put(pool, tenant, new_retry(message_id=message.message_id, retry_count=2))
    async with transaction(pool, tenant) as connection:
        (row,) = await take_due(connection, tenant, 10)
        assert (row.retry_count, row.exhausted) == (0, False)
        (sent,) = await remove(connection, [row.id])
        assert sent.was_replay
        await mark_replayed(connection, tenant, [sent.message_id])
    assert (await the_only(pool, tenant)).status is MessageStatus.REPLAYED


async def test_command_to_a_message_that_is_none_has_no_answer(pool: Pool, tenant: str) -> None:
    """Nothing is written for it."""
    assert await take_command(pool, tenant, uuid.uuid4(), replay()) is None


async def test_dead_messages_are_listed_newest_first_by_pages(pool: Pool, tenant: str) -> None:
    """Filters hold, pages follow each other, a cursor of another list is refused."""
    for number in range(3):
        await give_up(pool, tenant, new_dead(original_queue=f"queue-{number % 2}"))
    wanted = MessageFilter(tenant=tenant)
    first = await list_dead(pool, wanted, 2)
    second = await list_dead(pool, wanted, 2, first.cursor)
    times = [row.last_failed_at for row in (*first.rows, *second.rows)]
    assert len(times) == 3
    assert times == sorted(times, reverse=True)
    assert second.cursor is None
    assert len((await list_dead(pool, MessageFilter(tenant=tenant, queue="queue-0"), 10)).rows) == 2
    assert (await list_dead(pool, MessageFilter(tenant=tenant, status=MessageStatus.REPLAYED), 10)).rows == []
    with pytest.raises(InvalidInput, match="cursor"):
        await list_dead(pool, MessageFilter(), 2, first.cursor)
    (found,) = await find_dead(pool, None, first.rows[0].message_id)
    assert parse_id(found.id) == found.message_id
    assert parse_id("nonsense") is None


async def test_a_batch_is_read_from_the_index(
    pool: Pool, tenant: str, owner: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    """With many that wait, those that are due come from the index in its command: nothing is sorted or read through."""
    await owner.execute(
        """
        INSERT INTO retry_queue (tenant, message_id, original_payload, original_queue, next_retry_at)
        SELECT $1, gen_random_uuid(), '', 'billing', now() + interval '1 hour' FROM generate_series(1, 20000)
        """,
        tenant,
    )
    await owner.execute("ANALYZE retry_queue")
    await put(pool, tenant, *(new_retry() for _ in range(50)))
    async with transaction(pool, tenant) as connection:
        rows = await connection.fetch(
            "EXPLAIN SELECT id FROM retry_queue WHERE tenant = $1 AND next_retry_at <= now() "
            "ORDER BY next_retry_at LIMIT 500 FOR UPDATE SKIP LOCKED",
            tenant,
        )
    plan = "\n".join(row[0] for row in rows)
    assert "Index Scan using idx_retry_next_retry" in plan
    assert "Sort" not in plan
