"""Where an outbox bridge looks next: behind what it has taken, or where there is news."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from redrive.bridges.outbox.row_queue import Place, RowQueue, place_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def place(minutes: int, position: int = 0) -> Place:
    return Place(NOON + timedelta(minutes=minutes), position)


async def test_place_is_looked_at_once() -> None:
    """Without news there is nothing to look for."""
    queue = RowQueue("take")
    assert queue.next_place() is None
    queue.tell(place(1, 7))
    assert queue.next_place() == place(1, 7)
    assert queue.next_place() is None


async def test_earliest_of_all_news_counts() -> None:
    """A transaction that took long commits a row that is older than those that were taken."""
    queue = RowQueue("take")
    for each in (place(5), place(3, 2), place(3, 1), place(4)):
        queue.tell(each)
    assert queue.next_place() == place(3, 1)


async def test_wait_ends_with_news_and_with_what_else_is_waited_for() -> None:
    """A lane waits for rows, and for the first answer to a start."""
    queue = RowQueue("take")
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(queue.wait([answer]))
    await asyncio.sleep(0)
    assert not waiting.done()
    answer.set_result(None)
    await waiting
    waiting = asyncio.create_task(queue.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.tell(place(1))
    await waiting
    assert queue.next_place() == place(1)


async def test_news_without_a_place_ends_the_pause_of_the_search_and_no_lane_s_wait() -> None:
    """Lanes do not look from the beginning: the search does, beside them."""
    queue = RowQueue("take")
    searching, waiting = asyncio.create_task(queue.pause_search(3600)), asyncio.create_task(queue.wait())
    await asyncio.sleep(0)
    queue.tell(None)
    await searching
    assert not waiting.done()
    assert queue.next_place() is None
    queue.wake()
    await waiting


@pytest.mark.parametrize("payload", ["", "-Infinity", "Infinity", "NaN", "soon", "1e300"])
def test_notification_without_a_time_names_no_place(payload: str) -> None:
    """Then its row is searched for."""
    assert place_of(payload) is None


def test_notification_names_its_time_to_the_microsecond() -> None:
    """As PostgreSQL prints extract(epoch FROM …)."""
    assert place_of("1767268800.123457") == Place(NOON.replace(microsecond=123457), 0)
