"""Live updates: one read of the audit log's heads each second for all listeners, and none without listeners."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from redrive.bulk import BulkProgress, BulkView
from redrive.errors import BulkNotFound, RedriveError
from redrive.logs import get_logger
from redrive.postgres.database import DATABASE_ERRORS
from redrive.postgres.tenancy import Pool
from redrive.store.audit import Change, changes_after, heads
from redrive.store.bulk.lists import get_bulk, open_bulks

INTERVAL: Final = 1.0
# The maximum number of changes that wait for a listener; a slower one is told to reload everything.
_BACKLOG: Final = 1000
_log = get_logger(__name__)


class Listener:
    """One open stream: the changes of one tenant, or of all, in order."""

    def __init__(self, tenant: str | None) -> None:
        self.tenant = tenant
        self.changes: asyncio.Queue[Change | BulkView | None] = asyncio.Queue(_BACKLOG)

    def give(self, change: Change | BulkView) -> None:
        """Queue a change. A full queue is emptied, and ends with None: too much was missed."""
        if self.tenant not in {None, change.tenant}:
            return
        if self.changes.full():
            while not self.changes.empty():
                self.changes.get_nowait()
            self.changes.put_nowait(None)
        else:
            self.changes.put_nowait(change)


class Feed:
    """All open streams of this process."""

    def __init__(self, pool: Callable[[], Awaitable[Pool]]) -> None:
        self._pool = pool
        self._listeners: set[Listener] = set()
        self._watching: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def listening(self, tenant: str | None) -> AsyncIterator[Listener]:
        """Listen for the length of a block."""
        listener = Listener(tenant)
        async with self._starting:
            if self._watching is None:
                known = await heads(await self._pool())
                self._watching = asyncio.create_task(self._watch(known), name="changes")
            self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            async with self._starting:
                if not self._listeners:
                    await self.close()

    async def close(self) -> None:
        """Stop looking."""
        watching, self._watching = self._watching, None
        if watching:
            watching.cancel()
            await asyncio.wait({watching})

    async def _watch(self, known: dict[str, int]) -> None:
        running: dict[str, BulkView] = {}
        while True:
            await asyncio.sleep(INTERVAL)
            try:
                pool = await self._pool()
                running = await self._look_at_bulks(pool, running, await self._look(pool, known))
            except (RedriveError, *DATABASE_ERRORS) as error:
                _log.warning("console.changes_not_read", error_type=type(error).__name__, error=str(error))

    async def _look(self, pool: Pool, known: dict[str, int]) -> set[str]:
        """Publish what is new in the log; return the bulk operations that it mentions."""
        bulks: set[str] = set()
        for tenant, head in (await heads(pool)).items():
            while known.get(tenant, 0) < head:
                found = await changes_after(pool, tenant, known.get(tenant, 0))
                for change in found:
                    self._give(change)
                    bulks |= {change.bulk_id} if change.bulk_id else set()
                known[tenant] = found[-1].number if found else head
        return bulks

    async def _look_at_bulks(self, pool: Pool, before: dict[str, BulkView], named: set[str]) -> dict[str, BulkView]:
        """Publish changed progress of bulk operations; for an ended one, a last time."""
        now = {view.id: view for view in await open_bulks(pool)}
        # One may begin and end between two reads: the log names it.
        ended = []
        for bulk_id in (before.keys() | named) - now.keys():
            # The log also has starts that were refused.
            with contextlib.suppress(BulkNotFound):
                ended.append(await get_bulk(pool, None, bulk_id))
        for view in [*now.values(), *ended]:
            if view.id not in before or _counts(before[view.id]) != _counts(view):
                self._give(view)
        return now

    def _give(self, change: Change | BulkView) -> None:
        for listener in self._listeners:
            listener.give(change)


def _counts(view: BulkView) -> BulkProgress:
    return view.progress.model_copy(update={"since_sent": None})
