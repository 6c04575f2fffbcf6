"""Where an outbox bridge looks next: behind what it has taken, and from the beginning once in a poll interval."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from redrive.bridges.outbox.row_queue import BEGINNING, Place, RowQueue, place_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def place(minutes: int, position: int = 0) -> Place:
    return Place(NOON + timedelta(minutes=minutes), position)


def looked_at_all(interval: timedelta = HOUR) -> RowQueue:
    """A queue whose first look, from the beginning, is done."""
    queue = RowQueue("take", interval)
    assert queue.next_place() == BEGINNING
    queue.looked(BEGINNING, None, 0.0)
    return queue


async def test_look_that_found_fewer_than_it_could_leaves_nothing_to_look_for() -> None:
    """Nothing is known of further rows."""
    assert looked_at_all().next_place() is None


async def test_full_look_is_followed_by_one_behind_its_last_row() -> None:
    """There may be more, and those before it are taken."""
    queue = looked_at_all()
    queue.looked(place(1), place(2, 7), 0.0)
    assert queue.next_place() == place(2, 7)
    assert queue.next_place() is None


async def test_earliest_of_all_news_counts() -> None:
    """A transaction that took long commits a row that is older than those that were taken."""
    queue = looked_at_all()
    for each in (place(5), place(3), place(4)):
        queue.tell(each)
    assert queue.next_place() == place(3)


async def test_wait_ends_with_news_and_with_what_else_is_waited_for() -> None:
    """A lane waits for rows, and for the first answer to a start."""
    queue = looked_at_all()
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(queue.wait([answer]))
    await asyncio.sleep(0)
    assert not waiting.done()
    answer.set_result(None)
    await waiting
    waiting = asyncio.create_task(queue.wait())
    await asyncio.sleep(0)
    queue.tell(place(1))
    await waiting
    assert queue.next_place() == place(1)


async def test_all_is_looked_at_once_in_a_poll_interval_whatever_was_told() -> None:
    """What nobody tells of is found in time, also while rows come without a pause."""
    queue = looked_at_all(timedelta(milliseconds=1))
    await queue.wait()
    queue.tell(place(1))
    assert queue.next_place() == BEGINNING


async def test_look_at_all_that_takes_long_is_repeated_less_often() -> None:
    """Passing over a million taken rows must not become the bridge's work."""
    queue = RowQueue("take", timedelta(milliseconds=1))
    assert queue.next_place() == BEGINNING
    queue.looked(BEGINNING, None, 60.0)
    queue.tell(place(1))
    assert queue.next_place() == place(1)


@pytest.mark.parametrize("payload", ["", "-Infinity", "Infinity", "NaN", "soon", "1e300"])
def test_notification_without_a_time_means_the_beginning(payload: str) -> None:
    """An early enough time misses nothing."""
    assert place_of(payload) == BEGINNING


def test_notification_names_its_time_to_the_microsecond() -> None:
    """As PostgreSQL prints extract(epoch FROM …)."""
    assert place_of("1767268800.123457") == Place(NOON.replace(microsecond=123457), 0)
