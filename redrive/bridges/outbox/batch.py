"""The rows of one transaction, each on the way to its run."""

import asyncio
from collections.abc import Iterable, Iterator

from redrive.bridges.outbox.handling import Outcome, RowHandler
from redrive.outbox.rows import OutboxEntry

Handling = asyncio.Task[Outcome | Exception]


class Batch:
    """Rows that are handled side by side."""

    def __init__(self, handler: RowHandler) -> None:
        self._handler = handler
        self._rows: dict[Handling, OutboxEntry] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Handling]:
        return iter(self._rows)

    @property
    def is_answered(self) -> bool:
        """Tell whether the outcome of any row is known."""
        return any(task.done() for task in self._rows)

    def add(self, rows: Iterable[OutboxEntry]) -> None:
        """Begin to handle rows. Those that it has are not skipped by a look: the lock is its own transaction's."""
        known = {row.event_id for row in self._rows.values()}
        for row in rows:
            if row.event_id not in known:
                self._rows[asyncio.create_task(self._handle(row))] = row

    async def outcomes(self) -> list[tuple[OutboxEntry, Outcome | Exception]]:
        """Wait for the outcomes of all rows; the outcome of one that met an outage is the error."""
        if self._rows:
            await asyncio.wait(self._rows)
        return [(row, task.result()) for task, row in self._rows.items()]

    def cancel(self) -> None:
        """End what is not done."""
        for task in self._rows:
            task.cancel()

    async def _handle(self, row: OutboxEntry) -> Outcome | Exception:
        try:
            return await self._handler.handle(row)
        except Exception as error:
            return error
