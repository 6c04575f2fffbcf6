"""Our processes: how they begin, how they are told to stop, and how they end."""

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Final, NoReturn

from redrive.errors import RedriveError
from redrive.logs import configure_logging, get_logger
from redrive.settings import Settings, read_settings
from redrive.tracing import finish_tracing, start_tracing

log = get_logger(__name__)

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run_program(name: str, serve: Callable[[Settings], Coroutine[Any, Any, None]], *, failed: str) -> NoReturn:
    """Run a process from its settings to its end. When it cannot go on, the event `failed` says why in one sentence."""
    code = 0
    configure_logging()
    try:
        start_tracing(f"redrive-{name}")
        settings = read_settings()
        prepare(settings)
        asyncio.run(serve(settings))
    except RedriveError as error:
        log.error(failed, error=str(error), code=error.code)
        code = 1
    leave(code)


def prepare(settings: Settings) -> None:
    """Log as the settings say, Temporal's SDK included."""
    # Here: `redrive --help` goes through this module and has no use for the SDK.
    from redrive.processes.temporal import log_through_us  # noqa: PLC0415

    configure_logging(settings.log_level, settings.log_format, settings.redactor())
    log_through_us()


def say_ready(file: Path | None) -> None:
    """Take all that is loaded by now for permanent, and touch the file that whoever waits for this process looks at."""
    # The collector would look through the libraries again and again: 60 ms out of each 1.5 s of a busy bridge.
    gc.collect()
    gc.freeze()
    if file:
        file.touch()


def leave(code: int) -> NoReturn:
    """End this process."""
    finish_tracing()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = code or 1
    # Interpreter shutdown with Temporal's native threads alive can crash; there is nothing left to clean up.
    os._exit(code)


def on_stop_signals(act: Callable[[], object]) -> None:
    """Do this at every SIGTERM and SIGINT from now on, and nothing else."""
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, act)


@contextlib.asynccontextmanager
async def until_signalled() -> AsyncIterator[asyncio.Event]:
    """Leave the block at the first SIGINT or SIGTERM: what it opened is closed, and the event is set.

    A second signal changes nothing: stopping is under way and takes seconds.
    """
    task, stopped = asyncio.current_task(), asyncio.Event()

    def stop() -> None:
        if task and not stopped.is_set():
            stopped.set()
            task.cancel()

    on_stop_signals(stop)
    try:
        yield stopped
    except asyncio.CancelledError:
        if not stopped.is_set() or task is None:
            raise
        task.uncancel()
    finally:
        for number in STOP_SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)
