"""The threads of a worker's modules that are plain functions.

A thread whose attempt has ended cannot be stopped. Some may be left behind; when there are too many, the worker ends
itself, as it does when a module blocks the event loop: another one takes its steps.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from redrive.activities.worker_health import EXIT_CODE
from redrive.logs import get_logger
from redrive.modules import Module, ModuleContext
from redrive.threads import run_in_thread

LEFT_LIMIT: Final = 32

log = get_logger(__name__)


class ModuleThreads:
    """Call modules: those that are plain functions in threads, the others on the loop."""

    def __init__(self, steps: int, give_up: Callable[[], None] | None = None) -> None:
        # Threads that were left behind must not keep the worker's steps waiting.
        self._pool = ThreadPoolExecutor(steps + LEFT_LIMIT, thread_name_prefix="module")
        self._give_up = give_up or (lambda: os._exit(EXIT_CODE))
        self._left: set[Future[Any]] = set()

    async def call(self, module: Module[Any, Any], ctx: ModuleContext, given: Any) -> Any:
        """Call a module once."""
        if module.is_async:
            return await module.function(ctx, given)
        return await run_in_thread(module.function, ctx, given, pool=self._pool, on_left=self._leave)

    def _leave(self, running: Future[Any]) -> None:
        self._left.add(running)
        running.add_done_callback(self._left.discard)
        log.warning("step.thread_left", threads=len(self._left))
        if len(self._left) >= LEFT_LIMIT:
            log.error("worker.threads_used_up", threads=len(self._left), action="exit")
            self._give_up()

    def close(self) -> None:
        """Start no more. What still runs is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)
