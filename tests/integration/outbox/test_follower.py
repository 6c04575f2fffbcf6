"""A bridge looks after the runs of its rows for a tenth of its time at most: the rest is for starts."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from redrive import Redrive
from redrive.bridges.outbox import follower
from redrive.bridges.outbox.follower import BATCH, Follower
from redrive.outbox.rows import OutboxStatus
from redrive.postgres.database import Database
from redrive.redaction.redactor import Redactor
from redrive.store.run_fates import Followed, RunFate
from tests.conftest import eventually
from tests.integration.outbox.outbox_lab import OutboxLab

SHORTEST, LONGEST = 0.2, 5.0
# More than one pass takes; each is due, and neither the records nor Temporal know its run.
DUE = """
    INSERT INTO {}.outbox (pipeline, key, payload, status, run_id, started_at, check_at)
    SELECT 'order', 'due' || number, '{{}}', 'in_flight', 'run-' || number, now() - $1::interval, now()
    FROM generate_series(1, $2::integer) AS number
"""
JUST_NOW, LONG_AGO = timedelta(seconds=1), timedelta(minutes=10)
# How exact an event loop's timers are.
CLOCK = 0.01


@contextlib.asynccontextmanager
async def made_follower(lab: OutboxLab) -> AsyncIterator[Follower]:
    """Return a follower whose passes the test makes."""
    redrive = Redrive(lab.temporal, task_queue=lab.settings.task_queue, registry=lab.registry)
    async with Database(lab.url) as database:
        yield Follower(lab.outbox, redrive, database, Redactor())
    await redrive.close()


async def fill(lab: OutboxLab, started: timedelta, count: int) -> None:
    """Let so many rows be due whose runs were started so long ago."""
    pool = await lab.outbox.database.pool()
    await pool.execute(DUE.format(lab.outbox.schema), started, count)


async def test_pass_without_news_is_followed_by_a_pause_however_many_rows_are_due(lab: OutboxLab) -> None:
    """More rows than a pass takes, and nothing is known of their runs: looking on at once would only cost."""
    async with made_follower(lab) as made:
        assert await made.follow_some() >= SHORTEST
        await fill(lab, JUST_NOW, BATCH + 1)
        assert await made.follow_some() >= SHORTEST
        assert await lab.count(OutboxStatus.FAILED) == 0


async def test_full_pass_with_news_is_followed_by_the_next_at_once(lab: OutboxLab) -> None:
    """More rows than a pass takes, and runs of them have ended: the rows behind them wait for no pause."""
    async with made_follower(lab) as made:
        await fill(lab, LONG_AGO, BATCH + 1)
        assert await made.follow_some() == 0
        assert await lab.count(OutboxStatus.FAILED) > 0
        assert await made.follow_some() >= SHORTEST


@pytest.mark.parametrize(("took", "pause"), [(0.1, 0.9), (0.7, LONGEST)])
async def test_pause_is_nine_times_as_long_as_the_pass_up_to_five_seconds(
    lab: OutboxLab, monkeypatch: pytest.MonkeyPatch, took: float, pause: float
) -> None:
    """Records that answer slowly, because very many runs are under way, are asked less often."""

    async def slow(_: object, __: list[Followed]) -> dict[str, RunFate]:
        await asyncio.sleep(took)
        return {}

    monkeypatch.setattr(follower, "fates_of", slow)
    async with made_follower(lab) as made:
        await fill(lab, JUST_NOW, 1)
        assert pause <= await made.follow_some() <= LONGEST


async def test_bridge_pauses_as_long_as_its_follower_says(lab: OutboxLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is under way, and there is no news of it."""
    begins: list[float] = []
    until: list[float] = []
    follow_some = Follower.follow_some

    async def timed(self: Follower) -> float:
        begins.append(time.monotonic())
        pause = await follow_some(self)
        until.append(time.monotonic() + pause)
        return pause

    monkeypatch.setattr(Follower, "follow_some", timed)
    async with lab.bridge():
        await lab.becomes(await lab.enqueue(1), OutboxStatus.IN_FLIGHT)
        passes = len(begins)
        await eventually(lambda: _is_true(len(begins) >= passes + 3))
    early = [end - begin for end, begin in zip(until, begins[1:], strict=False) if begin < end - CLOCK]
    assert not early


async def _is_true(value: bool) -> bool:
    return value
