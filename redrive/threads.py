"""Plain functions in threads, beside the event loop, and the way from such a thread back to the loop.

Python cannot stop a thread. When its caller no longer waits (a deadline, a cancellation), the thread continues, and
what it returns is dropped. `wait` and what `on_loop` made then raise AttemptEnded in it: it ends at its next call.
"""

import asyncio
import concurrent.futures
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from redrive.errors import AttemptEnded

T = TypeVar("T")


@dataclass(eq=False)
class _Call:
    """One call of a function in a thread, as the thread sees it."""

    loop: asyncio.AbstractEventLoop
    has_ended: bool = False
    waiting: set[Future[Any]] = field(default_factory=set)

    def end(self) -> None:
        """Let nothing more come from the thread, and wake it if it waits."""
        self.has_ended = True
        for future in tuple(self.waiting):
            future.cancel()

    def check(self) -> None:
        if self.has_ended:
            raise AttemptEnded("the attempt has ended, and its function still runs: return, nobody waits for it")


_call: contextvars.ContextVar[_Call | None] = contextvars.ContextVar("redrive_thread_call", default=None)


async def run_in_thread(
    function: Callable[..., Any],
    *arguments: Any,
    pool: Executor | None = None,
    on_left: Callable[[Future[Any]], None] | None = None,
) -> Any:
    """Call a function in a thread, with this task's context, and return its result.

    `on_left` is called with a function that still runs when nobody waits for it any more.
    """
    call = _Call(asyncio.get_running_loop())
    context = contextvars.copy_context()
    context.run(_call.set, call)
    threads = pool or ThreadPoolExecutor(1)
    running = threads.submit(context.run, _outcome, function, arguments)
    try:
        value, error = await asyncio.wrap_future(running)
    finally:
        call.end()
        if pool is None:
            threads.shutdown(wait=False)
        if on_left and not running.done():
            on_left(running)
    if error is not None:
        raise error
    # A decorator may hide that a function is async.
    return await value if inspect.isawaitable(value) else value


def _outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, BaseException | None]:
    # As a value: a future cannot carry a StopIteration, and the loop ends at a SystemExit.
    try:
        return function(*arguments), None
    except BaseException as error:
        return None, error


def wait(awaitable: Awaitable[T]) -> T:
    """Wait, in a thread of `run_in_thread`, for what runs on the loop."""
    call = _call.get()
    if call is None or _is_on_loop():
        if inspect.iscoroutine(awaitable):
            awaitable.close()
        raise RuntimeError("ctx.wait is for modules that are plain functions; an async one writes `await`")
    future = asyncio.run_coroutine_threadsafe(_awaited(awaitable), call.loop)
    call.waiting.add(future)
    try:
        if call.has_ended:
            future.cancel()
        return future.result()
    except concurrent.futures.CancelledError:
        call.check()
        raise
    finally:
        call.waiting.discard(future)


def on_loop(function: Callable[[], None]) -> Callable[[], None]:
    """Return a function for a module: called in a thread, it runs on the loop soon; on the loop, at once."""

    def act() -> None:
        call = _call.get()
        if call is None or _is_on_loop():
            function()
            return
        call.check()
        call.loop.call_soon_threadsafe(function)

    return act


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _is_on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
