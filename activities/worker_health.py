"""What a worker observes of itself: a blocked event loop, and the backlog of dead letters and retries.

A blocked loop stops every step of the worker, and no timeout can interrupt it. The watchdog reports a module that
blocks it, and ends the process if the module does not stop: another worker takes its steps, and the blocking step is
retried until its attempts are used up. The gauges are read from Postgres at intervals.
"""

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta

from redrive.errors import RedriveError
from redrive.logs import get_logger
from redrive.metrics import Metrics
from redrive.postgres.database import DATABASE_ERRORS, Database
from redrive.store.dead_letters.figures import backlog

TICK = 0.5
EXIT_CODE = 70
GAUGE_INTERVAL = timedelta(seconds=15)

log = get_logger(__name__)


class StallGuard:
    """Watch the running loop from a separate thread. Use as a context manager inside the loop."""

    def __init__(self, limit: timedelta, give_up: Callable[[], None] | None = None) -> None:
        self._limit = limit.total_seconds()
        self._give_up = give_up or (lambda: os._exit(EXIT_CODE))
        self._seen = time.monotonic()
        self._stopped = threading.Event()
        self._loop_thread = threading.get_ident()
        self._handle: asyncio.TimerHandle | None = None

    def __enter__(self) -> "StallGuard":
        self._tick()
        threading.Thread(target=self._watch, name="stall-guard", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._handle:
            self._handle.cancel()

    def _tick(self) -> None:
        self._seen = time.monotonic()
        self._handle = asyncio.get_running_loop().call_later(TICK, self._tick)

    def _watch(self) -> None:
        warned, stalled, seen = False, 0.0, self._seen
        while not self._stopped.wait(TICK):
            # Counted, not measured: for a machine or a process that was frozen, no time has passed.
            stalled = stalled + TICK if self._seen == seen else 0.0
            seen = self._seen
            if stalled > self._limit:
                log.error("worker.stalled", stalled_s=round(stalled, 1), stack=self._stack(), action="exit")
                self._give_up()
                return
            if stalled > 4 * TICK and not warned:
                log.warning("worker.blocked", stalled_s=round(stalled, 1), stack=self._stack())
            warned = stalled > 4 * TICK

    def _stack(self) -> str:
        """Return the stack of the loop's thread: the lines that block it."""
        frame = sys._current_frames().get(self._loop_thread)
        return "".join(traceback.format_stack(frame)[-4:]) if frame else ""


async def keep_gauges(database: Database, metrics: Metrics) -> None:
    """Update the gauges while the worker runs; while the database is down they keep their last values."""
    while True:
        try:
            metrics.backlog(*await backlog(await database.pool()))
        except (RedriveError, *DATABASE_ERRORS) as error:
            log.warning("worker.gauges_stale", error=str(error), error_type=type(error).__name__)
        await asyncio.sleep(GAUGE_INTERVAL.total_seconds())
