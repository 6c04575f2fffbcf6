"""Connections for those who cannot wait."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from signal import SIGCONT, SIGSTOP

import asyncpg
import pytest

from redrive.errors import Unavailable
from redrive.postgres.database import DeadlinePool, connect
from redrive.postgres.tenancy import Session
from tests.conftest import eventually

LONG = timedelta(seconds=30)
BRIEF = timedelta(milliseconds=200)
# Far below what a statement would take, far above what a busy machine needs.
AT_ONCE = 5.0


@pytest.fixture
async def deadline_pool(migrated_url: str) -> AsyncIterator[DeadlinePool]:
    deadline_pool = DeadlinePool(migrated_url, max_size=2)
    yield deadline_pool
    deadline_pool.close()


@pytest.fixture
async def owner(migrated_url: str) -> AsyncIterator[Session]:
    connection = await connect(migrated_url)
    yield connection
    await connection.close()


async def _pid(session: Session) -> int:
    pid: int = await session.fetchval("SELECT pg_backend_pid()")
    return pid


async def _pid_slowly(session: Session) -> int:
    await session.execute("SELECT pg_sleep(0.1)")
    return await _pid(session)


async def _is_gone(owner: Session, pid: int) -> bool:
    return not await owner.fetchval("SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid)


async def test_a_connection_is_used_again_as_the_application(deadline_pool: DeadlinePool) -> None:
    """One connection answers one question after the other, with the rights of the application's role."""
    pids = {await deadline_pool.ask(_pid, LONG) for _ in range(3)}
    assert len(pids) == 1
    assert await deadline_pool.ask(lambda session: session.fetchval("SELECT current_user"), LONG) == "redrive_app"
    assert await deadline_pool.ask(lambda session: session.fetchval("SELECT current_schema()"), LONG) == "redrive"


async def test_no_more_connections_than_allowed(deadline_pool: DeadlinePool) -> None:
    """Of three questions at once one waits for a connection."""
    pids = await asyncio.gather(*(deadline_pool.ask(_pid_slowly, LONG) for _ in range(3)))
    assert len(set(pids)) == 2


async def test_after_a_rush_one_connection_is_kept(
    deadline_pool: DeadlinePool, owner: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are closed when nobody has needed them for a while."""
    monkeypatch.setattr("redrive.postgres.database.SURPLUS_LIFETIME", timedelta(milliseconds=50))
    pids = await asyncio.gather(*(deadline_pool.ask(_pid_slowly, LONG) for _ in range(2)))

    async def left() -> bool:
        return [await _is_gone(owner, pid) for pid in pids].count(False) == 1

    await eventually(left)
    assert await deadline_pool.ask(_pid, LONG) in pids


async def test_a_connection_that_the_server_closed_is_replaced(deadline_pool: DeadlinePool, owner: Session) -> None:
    """A restart of the server between two questions is not noticed by who asks."""
    pid = await deadline_pool.ask(_pid, LONG)
    await owner.execute("SELECT pg_terminate_backend($1)", pid)

    async def noticed() -> bool:
        return deadline_pool._idle[0].is_closed()

    await eventually(noticed)
    assert await deadline_pool.ask(_pid, LONG) != pid


@pytest.mark.parametrize("statement", ["SELECT 1/0", "SELECT pg_sleep(60)"])
async def test_a_connection_without_an_answer_is_thrown_away(
    deadline_pool: DeadlinePool, owner: Session, statement: str
) -> None:
    """What failed or took too long is not asked again on the same connection, and the server is rid of it."""
    pid = await deadline_pool.ask(_pid, LONG)
    began = time.monotonic()
    with pytest.raises((asyncpg.DivisionByZeroError, TimeoutError)):
        await deadline_pool.ask(lambda session: session.execute(statement), BRIEF)
    assert time.monotonic() - began < AT_ONCE
    assert await deadline_pool.ask(_pid, LONG) != pid
    await eventually(lambda: _is_gone(owner, pid))


async def test_a_server_that_hangs_holds_nobody(deadline_pool: DeadlinePool) -> None:
    """Neither the question nor a new connection waits longer than asked for; when the server goes on, it answers."""
    pid = await deadline_pool.ask(_pid, LONG)
    with _frozen(pid):
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=r"no answer within 0\.2 s"):
            await deadline_pool.ask(_pid, BRIEF)
        assert time.monotonic() - began < AT_ONCE
    assert await deadline_pool.ask(_pid, LONG) != pid


@contextmanager
def _frozen(pid: int) -> Iterator[None]:
    os.kill(pid, SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, SIGCONT)


async def test_closing_ends_idle_and_busy_connections(deadline_pool: DeadlinePool, owner: Session) -> None:
    """A question that is under way is answered, and its connection is not kept."""
    idle = await deadline_pool.ask(_pid, LONG)
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def question(session: Session) -> int:
        reached.set()
        await go_on.wait()
        return await _pid(session)

    asking = asyncio.create_task(deadline_pool.ask(question, LONG))
    await reached.wait()
    other = await deadline_pool.ask(_pid, LONG)
    deadline_pool.close()
    go_on.set()
    for pid in (idle, other, await asking):
        await eventually(lambda pid=pid: _is_gone(owner, pid))  # type: ignore[misc]  # mypy cannot infer the default


async def test_a_database_that_is_away_gives_a_sentence() -> None:
    """It names the place and not the password."""
    deadline_pool = DeadlinePool("postgresql://me:hush@127.0.0.1:1/db", max_size=1)
    with pytest.raises(Unavailable, match=r"the database at 127\.0\.0\.1:1 cannot be reached") as caught:
        await deadline_pool.ask(_pid, LONG)
    assert "hush" not in str(caught.value)
