"""The guard against modules that block the event loop."""

import asyncio
import signal
import sys
import threading
import time
from asyncio.subprocess import PIPE
from datetime import timedelta

import pytest

from redrive.activities import worker_health as stalls
from redrive.activities.worker_health import StallGuard
from tests.conftest import eventually


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look every 10 ms instead of every half second."""
    monkeypatch.setattr(stalls, "TICK", 0.01)


async def test_a_loop_that_stays_blocked_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    """Past the limit the guard gives up, once, and tells the lines that block."""
    given_up: list[float] = []
    began = time.monotonic()
    with StallGuard(timedelta(seconds=0.1), give_up=lambda: given_up.append(time.monotonic())):
        time.sleep(1)  # noqa: ASYNC251 - this is what the guard is for
    assert len(given_up) == 1
    assert given_up[0] - began >= 0.1
    told = capsys.readouterr()
    assert "worker.stalled" in told.out + told.err
    assert "test_stalls.py" in told.out + told.err


async def test_a_short_block_is_told_and_forgiven(capsys: pytest.CaptureFixture[str]) -> None:
    """Below the limit the guard warns and goes on."""
    given_up: list[bool] = []
    with StallGuard(timedelta(seconds=10), give_up=lambda: given_up.append(True)):
        await asyncio.sleep(0.02)
        time.sleep(0.2)  # noqa: ASYNC251 - this is what the guard is for
        await asyncio.sleep(0.02)
    told = capsys.readouterr()
    assert given_up == []
    assert "worker.blocked" in told.out + told.err


async def test_a_loop_that_turns_is_left_alone() -> None:
    """Waiting is not blocking, however long it takes."""
    given_up: list[bool] = []
    with StallGuard(timedelta(seconds=1), give_up=lambda: given_up.append(True)):
        await asyncio.sleep(1.3)
    assert given_up == []


FROZEN = """
import asyncio
from datetime import timedelta
from redrive.activities.worker_health import StallGuard

async def main():
    with StallGuard(timedelta(seconds=1)):
        print("ready", flush=True)
        await asyncio.to_thread(input)
        await asyncio.sleep(1.5)

asyncio.run(main())
"""


async def test_a_process_that_was_frozen_continues() -> None:
    """A laptop that slept, or a machine that was paused: the guard was frozen as well, and no module blocks."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", FROZEN, stdin=PIPE, stdout=PIPE)
    assert process.stdout
    await process.stdout.readline()
    process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(2)
    process.send_signal(signal.SIGCONT)
    await process.communicate(b"\n")
    assert process.returncode == 0


async def test_the_guard_ends_with_its_worker() -> None:
    """After the context no thread is left that could give up a loop that nobody ticks."""

    async def is_gone() -> bool:
        return not any(thread.name == "stall-guard" for thread in threading.enumerate())

    with StallGuard(timedelta(minutes=5)):
        assert not await is_gone()
    assert await eventually(is_gone)
