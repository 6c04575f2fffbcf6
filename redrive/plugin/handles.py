"""Handles of operations that may park.

To everybody a handle is the real one (`inner`), until that one fails. No task is wrapped around it: a history that was
recorded without the plugin, with an activity and a timer that end in one workflow task, must replay with it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any

from temporalio import workflow

from redrive.plugin.code_lines import calling_line
from redrive.plugin.operations import Operation

Rescue = Callable[[Operation, BaseException], Coroutine[Any, Any, Any] | None]
Callback = Callable[[Any], object]


async def _nothing() -> None:
    """Complete the task that a handle is by its type; it is never looked at."""


class _Delegation(asyncio.Task[Any]):
    """A task's methods, by the task that decides the outcome now: the real one, or the rescue of its failure."""

    _inner: asyncio.Task[Any]
    _operation: Operation
    _rescue: Rescue | None
    _rescued: asyncio.Task[Any] | None
    _told: dict[Callback, list[Callback]]

    def _delegate(self, inner: asyncio.Task[Any], operation: Operation, rescue: Rescue) -> None:
        self._inner, self._operation, self._rescue, self._rescued, self._told = inner, operation, rescue, None, {}
        # The first callback: whoever is told later finds it decided.
        inner.add_done_callback(lambda _: self._now())

    def _now(self) -> asyncio.Task[Any]:
        """Return the task that decides the outcome. Whoever asks first after a failure has it rescued."""
        if self._rescue and self._inner.done():
            rescue, self._rescue = self._rescue, None
            if not self._inner.cancelled() and (error := self._inner.exception()) is not None:
                coroutine = rescue(self._operation, error)
                self._rescued = asyncio.create_task(coroutine) if coroutine else None
        return self._rescued or self._inner

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            return (yield from self._inner.__await__())
        except BaseException:
            rescued = self._now()
            if rescued is self._inner:
                raise
            # Here alone the code that waits is on the stack: the rescue is called by the event loop.
            self._operation.code_line = self._operation.code_line or calling_line()
        return (yield from rescued.__await__())

    __iter__ = __await__

    def add_done_callback(self, fn: Callback, /, *, context: Context | None = None) -> None:
        def tell(task: asyncio.Task[Any]) -> None:
            now = self._now()
            if now is task or now.done():
                fn(self)
            else:
                now.add_done_callback(tell, context=context)

        self._told.setdefault(fn, []).append(tell)
        self._now().add_done_callback(tell, context=context)

    def remove_done_callback(self, fn: Callback, /) -> int:
        added = self._told.pop(fn, [])
        tasks = [task for task in (self._inner, self._rescued) if task]
        return sum(task.remove_done_callback(tell) for tell in added for task in tasks)

    def done(self) -> bool:
        return self._now().done()

    def result(self) -> Any:
        return self._now().result()

    def exception(self) -> BaseException | None:
        return self._now().exception()

    def cancelled(self) -> bool:
        return self._now().cancelled()

    def cancel(self, msg: Any | None = None) -> bool:
        return self._now().cancel(msg)

    def cancelling(self) -> int:
        return self._now().cancelling()

    def uncancel(self) -> int:
        return self._now().uncancel()


class ParkingActivityHandle(_Delegation, workflow.ActivityHandle[Any]):
    """The handle of an activity, or of a local activity."""

    def __init__(self, inner: workflow.ActivityHandle[Any], operation: Operation, rescue: Rescue) -> None:
        super().__init__(_nothing())
        self._delegate(inner, operation, rescue)


class ParkingChildHandle(_Delegation, workflow.ChildWorkflowHandle[Any, Any]):
    """The handle of a child workflow. The child that a replay starts has the same id."""

    _child: workflow.ChildWorkflowHandle[Any, Any]

    def __init__(self, inner: workflow.ChildWorkflowHandle[Any, Any], operation: Operation, rescue: Rescue) -> None:
        super().__init__(_nothing())
        self._child = inner
        self._delegate(inner, operation, rescue)

    @property
    def id(self) -> str:
        """Return the child's id."""
        return self._child.id

    @property
    def first_execution_run_id(self) -> str | None:
        """Return the run id of the child that was started first."""
        return self._child.first_execution_run_id

    async def signal(self, *arguments: Any, **options: Any) -> None:
        """Signal the child."""
        await self._child.signal(*arguments, **options)
