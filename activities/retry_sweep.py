"""The sweep of the retry scheduler as an activity."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final, Protocol

from temporalio import activity

from redrive.contracts import Activity, SweepInput
from redrive.logs import get_logger

HEARTBEAT_INTERVAL: Final = 1.0
# The time for a batch that is being sent when the sweep is canceled.
GRACE: Final = 30.0

log = get_logger(__name__)


class Sweeper(Protocol):
    """Sends the retries that are due."""

    async def sweep(self, tenant: str, stop: asyncio.Event) -> int:
        """Send what is due until the event is set; return how many messages were sent."""


class SweepActivities:
    """The sweep as Temporal runs it: one long activity after another, on any live process."""

    def __init__(self, sweeper: Sweeper) -> None:
        self._sweeper = sweeper

    @activity.defn(name=Activity.SWEEP_RETRIES)
    async def sweep_retries(self, given: SweepInput) -> int:
        """Sweep for one shift, or until this process is told to stop; return how many messages were sent."""
        stop = asyncio.Event()
        log.info("sweep.started", tenant_id=given.tenant)
        async with heartbeats(), _ending(stop, given.shift.total_seconds()):
            sent = await _finishing(asyncio.create_task(self._sweeper.sweep(given.tenant, stop)), stop)
        log.info("sweep.ended", tenant_id=given.tenant, count=sent)
        return sent


async def _finishing(sweep: asyncio.Task[int], stop: asyncio.Event) -> int:
    """Wait for the sweep. If canceled, finish the current batch: an interrupted one would be sent twice."""
    try:
        return await asyncio.shield(sweep)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait({sweep}, timeout=GRACE)
        sweep.cancel()
        await asyncio.gather(sweep, return_exceptions=True)
        raise


@contextlib.asynccontextmanager
async def heartbeats() -> AsyncIterator[None]:
    """Heartbeat while the block runs."""

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(HEARTBEAT_INTERVAL)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()


@contextlib.asynccontextmanager
async def _ending(stop: asyncio.Event, after: float) -> AsyncIterator[None]:
    """Set the event when the shift ends or the worker shuts down."""

    async def end() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(after):
                await activity.wait_for_worker_shutdown()
        stop.set()

    task = asyncio.create_task(end())
    try:
        yield
    finally:
        task.cancel()
