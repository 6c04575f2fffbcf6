"""A worker's slots for steps, shared between tenants.

Most slots are common. A few are reserved for tenants with hardly any running steps, so that one tenant's slow steps
never hold all of them. A step that finds no slot goes to the overflow queue, which uses common slots only.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import (
    CustomSlotSupplier,
    SlotMarkUsedContext,
    SlotPermit,
    SlotReleaseContext,
    SlotReserveContext,
)

from redrive.activities.attempts import to_details
from redrive.contracts import Attempt
from redrive.fairness import CROWDED_OUT, is_overflow, is_welcome


class _Kind(Enum):
    COMMON = auto()
    RESERVED = auto()
    OVERFLOW = auto()


class StepSlots:
    """Count who holds which slots of this process."""

    def __init__(self, steps: int, reserved: int) -> None:
        self.overflow = OverflowSlots(self)
        self._common = steps - reserved
        self._reserved = reserved
        self._kinds: Counter[_Kind] = Counter()
        self._tenants: Counter[str] = Counter()

    @contextlib.contextmanager
    def held(
        self, tenant: str, task_queue: str, earlier: Sequence[Attempt], *, is_local: bool = False
    ) -> Iterator[None]:
        """Hold a slot for an attempt, or send the step to the overflow queue with its attempts so far.

        Temporal bounds how many ordinary activities a worker has. It does not know that fast attempts are steps.
        """
        if is_local and self._kinds.total() >= self._common + self._reserved:
            raise _crowded_out(tenant, self._tenants[tenant], earlier)
        kind = _Kind.OVERFLOW if is_overflow(task_queue) else self._find(tenant)
        if kind is None:
            raise _crowded_out(tenant, self._tenants[tenant], earlier)
        self._kinds[kind] += 1
        self._tenants[tenant] += 1
        try:
            yield
        finally:
            self._kinds[kind] -= 1
            self._tenants[tenant] -= 1
            # Tenants come and go: drop their names.
            self._tenants += Counter()
            self.overflow.wake()

    def _find(self, tenant: str) -> _Kind | None:
        if not self._reserved or self.has_common():
            return _Kind.COMMON
        free = self._kinds[_Kind.RESERVED] < self._reserved
        return _Kind.RESERVED if free and is_welcome(self._tenants[tenant], self._reserved) else None

    def has_common(self) -> bool:
        """Tell whether a common slot is free. A slot counts as taken once the overflow queue is polled for it."""
        return self._kinds[_Kind.COMMON] + self.overflow.granted < self._common


def _crowded_out(tenant: str, held: int, earlier: Sequence[Attempt]) -> ApplicationError:
    return ApplicationError(
        f"the worker is busy, with {held} steps of tenant {tenant!r}: this one waits in the overflow queue",
        to_details(earlier),
        type=CROWDED_OUT,
        non_retryable=True,
        category=ApplicationErrorCategory.BENIGN,
    )


class OverflowSlots(CustomSlotSupplier):
    """Poll the overflow queue for one step at a time, and only while a common slot is free."""

    def __init__(self, slots: StepSlots) -> None:
        self.granted = 0
        self._asking = False
        self._slots = slots
        self._waiting: list[asyncio.Future[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:  # noqa: ARG002
        """Wait until a common slot is free."""
        self._loop = asyncio.get_running_loop()
        while self._asking or not self._slots.has_common():
            freed: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(freed)
            await freed
        self._asking = True
        self.granted += 1
        return SlotPermit()

    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:  # noqa: ARG002
        """Refuse: eager activities do not use this queue."""
        return None

    def mark_slot_used(self, ctx: SlotMarkUsedContext) -> None:  # noqa: ARG002
        """Let the queue be polled for the next step."""
        self._soon(self._came)

    def release_slot(self, ctx: SlotReleaseContext) -> None:
        """Take a slot back."""
        self._soon(self._left if ctx.slot_info else self._unused)

    def _soon(self, change: Callable[[], None]) -> None:
        # Called from a thread of Temporal's client.
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(change)

    def _came(self) -> None:
        self._asking = False
        self.wake()

    def _left(self) -> None:
        self.granted -= 1
        self.wake()

    def _unused(self) -> None:
        self._asking = False
        self._left()

    def wake(self) -> None:
        """Wake the waiters."""
        waiting, self._waiting = self._waiting, []
        for freed in waiting:
            if not freed.done():
                freed.set_result(None)
