"""`redrive up`: the whole stack in one terminal."""

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from cyclopts import Parameter
from rich.live import Live
from rich.prompt import Confirm
from rich.table import Table

from redrive.errors import InvalidInput
from redrive.settings import Settings
from starter.stack.ports import Ports
from starter.stack.stack import Stack, wipe
from starter.terminal import console


async def up(
    *,
    modules: Annotated[str | None, Parameter(help="Python modules to import, with commas.")] = None,
    workers: int = 1,
    temporal_port: int | None = None,
    ui_port: int | None = None,
    postgres_port: int | None = None,
    fresh: Annotated[bool, Parameter(negative="")] = False,
    yes: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Start Temporal, PostgreSQL and a worker, and keep them running until Ctrl-C.

    State lives in `.redrive/`: the next `up` goes on where this one stopped, with every run that was open.
    Set TEMPORAL_ADDRESS or DATABASE_URL to use a server of your own instead of the embedded one.

    Example: `redrive up --modules my_modules` starts a worker with the modules of my_modules.py.

    Parameters
    ----------
    workers
        How many worker processes.
    temporal_port
        Port of the Temporal server; without it 7233, or any free one.
    ui_port
        Port of the Temporal Web UI; without it 8233, or any free one.
    postgres_port
        Port of PostgreSQL; without it 5432, or any free one.
    fresh
        Forget everything first: all runs and records.
    yes
        Do not ask before `--fresh` forgets everything.
    """
    settings = Settings()
    if fresh:
        await _forget(settings.state_dir, sure=yes)
    chosen = settings.modules if modules is None else tuple(modules.split(","))
    ports = Ports(temporal=temporal_port, web_ui=ui_port, postgres=postgres_port)
    stop = stop_signal()
    console.print("starting …")
    async with Stack(settings, ports=ports, modules=chosen, workers=workers) as stack:
        print_addresses(stack)
        await _show_until(stop, stack)
        console.print("stopping …")
    console.print("stopped")


async def _forget(state_dir: Path, *, sure: bool) -> None:
    if not sure:
        if not sys.stdin.isatty():
            raise InvalidInput("--fresh: forgets every run and record; add --yes when there is no terminal to ask on")
        if not Confirm.ask(f"Forget every run and record in {state_dir}?", default=False):
            raise InvalidInput("--fresh: not confirmed; nothing was changed")
    await wipe(state_dir)


def stop_signal() -> asyncio.Event:
    """Return an event that Ctrl-C or SIGTERM sets."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def print_addresses(stack: Stack) -> None:
    """Say where everything is."""
    info = stack.info
    database = urlsplit(info.database_url.get_secret_value())
    rows = [
        ("Temporal", f"{info.temporal_address} (namespace {info.namespace})"),
        ("Web UI", info.web_ui or "where your Temporal server has it"),
        ("PostgreSQL", f"{database.hostname}:{database.port or 5432}{database.path}"),
        ("task queue", info.task_queue),
        ("modules", ", ".join(info.modules)),
    ]
    for name, value in rows:
        console.print(f"  {name:<11}{value}")
    console.print("Ctrl-C stops everything; state is kept.")


async def _show_until(stop: asyncio.Event, stack: Stack) -> None:
    """Show one line for each process until it is time to stop."""
    stopping = asyncio.create_task(stop.wait())
    with Live(console=console, auto_refresh=False) as live:
        while not stop.is_set():
            if console.is_terminal:
                live.update(_table(stack), refresh=True)
            else:
                _print_lines(stack)
            changed = asyncio.create_task(stack.wait_changed())
            await asyncio.wait({stopping, changed}, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()


def _lines(stack: Stack) -> Sequence[tuple[str, str, str, str]]:
    return [
        (status.name, status.state, f"pid {status.pid}" if status.pid else "", f"restarts {status.restarts}")
        for status in stack.children.values()
    ]


def _table(stack: Stack) -> Table:
    table = Table(box=None, show_header=False)
    for line in _lines(stack):
        table.add_row(*line)
    return table


def _print_lines(stack: Stack) -> None:
    for line in _lines(stack):
        console.print("  ".join(part for part in line if part))
