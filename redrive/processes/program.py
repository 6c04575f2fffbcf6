"""How our processes start, are told to stop, and end."""

import asyncio
import contextlib
import gc
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final, NoReturn

from redrive.errors import RedriveError
from redrive.logs import configure_logging, get_logger
from redrive.processes.process_exit import leave
from redrive.settings import Settings, read_settings
from redrive.tracing import start_tracing

log = get_logger(__name__)

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run_program(name: str, serve: Callable[[Settings], Coroutine[Any, Any, None]], *, failed: str) -> NoReturn:
    """Run a process from its settings to its end. If it cannot continue, the log event `failed` says why."""
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
    """Set up logging by the settings, including Temporal's SDK."""
    # Here: a program that only stops cleanly, such as `redrive up`, does not need the SDK.
    from redrive.processes.temporal import log_through_us  # noqa: PLC0415

    configure_logging(settings.log_level, settings.log_format, settings.redactor())
    log_through_us()


def say_ready(file: Path | None, lines: Iterable[str] = ()) -> None:
    """Exempt all that is loaded from garbage collection, and write the file that marks this process as ready."""
    # The collector would scan the libraries again and again: 60 ms of each 1.5 s of a busy bridge.
    gc.collect()
    gc.freeze()
    if file:
        # Whoever sees the file finds all of its lines.
        written = file.with_name(f"{file.name}.new")
        written.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        written.replace(file)


def on_stop_signals(act: Callable[[], object]) -> None:
    """Call this at every SIGTERM and SIGINT from now on, instead of the default."""
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, act)


@contextlib.asynccontextmanager
async def until_signalled() -> AsyncIterator[asyncio.Event]:
    """Leave the block at the first SIGINT or SIGTERM: what it opened is closed, and the event is set.

    A second signal changes nothing: stopping takes seconds.
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
