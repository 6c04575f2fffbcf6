"""Ctrl-C and SIGTERM, as an end that still cleans up."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def until_signalled() -> AsyncIterator[asyncio.Event]:
    """Leave the block at the first SIGINT or SIGTERM: what it opened is closed, and the event is set.

    A second signal changes nothing: stopping is under way and takes seconds.
    """
    task, loop, stopped = asyncio.current_task(), asyncio.get_running_loop(), asyncio.Event()

    def stop() -> None:
        if task and not stopped.is_set():
            stopped.set()
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        yield stopped
    except asyncio.CancelledError:
        if not stopped.is_set() or task is None:
            raise
        task.uncancel()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
