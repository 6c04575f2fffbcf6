"""`redrive up`: the whole stack in one terminal."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.live import Live
from rich.prompt import Confirm
from rich.table import Table
from rich.text import Text

from redrive.contracts import Broker
from redrive.errors import InvalidInput, RedriveError
from redrive.logs import said_once
from redrive.processes.program import until_signalled
from redrive.settings import read_settings
from redrive.starter.cli.records import database_errors
from redrive.starter.cli.terminal import console, plain
from redrive.starter.stack.children import ChildState, ChildStatus
from redrive.starter.stack.first_token import Logins, sign_in_link
from redrive.starter.stack.ports import Ports
from redrive.starter.stack.programs import chosen_brokers
from redrive.starter.stack.rabbitmq import RABBITMQ_PORT
from redrive.starter.stack.redis import REDIS_PORT
from redrive.starter.stack.stack import Stack, wipe
from redrive.starter.stack.worker_files import LogTail, changed_files, event_for_author, follow
from redrive.store.access import LINK_LASTS

Port = Annotated[int | None, Parameter(validator=Number(gte=1, lte=65535))]
_BROKERS = {
    Broker.REDIS: ("Redis", REDIS_PORT),
    Broker.RABBITMQ: ("RabbitMQ", RABBITMQ_PORT),
    Broker.OUTBOX: ("outbox", 5432),
}
_HEAD = {"timestamp", "level", "event", "logger"}
_LEVELS = {"info": "green", "warning": "yellow", "error": "red", "critical": "red"}
_STYLES = {ChildState.READY: "green", ChildState.RESTARTING: "red", ChildState.STOPPED: "dim"}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PortOptions:
    """The ports of `redrive up`."""

    temporal_port: Annotated[Port, Parameter(help="Port of the Temporal server; by default 7233, or any free one.")] = (
        None
    )
    ui_port: Annotated[Port, Parameter(help="Port of the Temporal Web UI; by default 8233, or any free one.")] = None
    postgres_port: Annotated[Port, Parameter(help="Port of PostgreSQL; by default 15432, or any free one.")] = None
    console_port: Annotated[Port, Parameter(help="Port of the console; by default 8300, or any free one.")] = None
    redis_port: Annotated[Port, Parameter(help="Port of Redis; by default 6379, or any free one.")] = None
    rabbitmq_port: Annotated[Port, Parameter(help="Port of RabbitMQ; by default 5672, or any free one.")] = None

    @property
    def ports(self) -> Ports:
        """The ports, as the stack takes them."""
        return Ports(
            temporal=self.temporal_port,
            web_ui=self.ui_port,
            postgres=self.postgres_port,
            console=self.console_port,
            brokers={Broker.REDIS: self.redis_port, Broker.RABBITMQ: self.rabbitmq_port},
        )


ANY_PORTS = PortOptions()


async def up(
    *,
    modules: str | None = None,
    workers: Annotated[int, Parameter(validator=Number(gte=0, lte=64))] = 1,
    listening: PortOptions = ANY_PORTS,
    brokers: Annotated[list[str] | None, Parameter(name="--with", negative=())] = None,
    reload: bool = False,
    quiet: bool = False,
    fresh: bool = False,
    yes: bool = False,
) -> None:
    """Start Temporal, PostgreSQL, a worker and the console, and keep them running until Ctrl-C.

    State is kept in `.redrive/`: the next `up` continues where this one stopped, with every open run.
    Set TEMPORAL_ADDRESS or DATABASE_URL to use your own server instead of the embedded one.

    **Examples**

    `redrive up` runs the examples that come with Redrive.

    `redrive up --modules hello --reload` runs the modules of your hello.py, and loads it again when it changes.

    `redrive up --modules hello,orders --workers 2` runs the modules of your hello.py and orders.py.

    `redrive up --with redis` also runs a Redis, and makes runs of the events on its stream.

    `redrive up --with outbox` also makes an outbox in its PostgreSQL, and runs of its rows.

    `redrive up --with redis,rabbitmq` also runs a RabbitMQ, and the retry scheduler on it.

    Parameters
    ----------
    modules
        Python modules or files below this directory, separated by commas: `hello` or `hello.py`. By default
        REDRIVE_MODULES, or the examples.
    workers
        How many worker processes; 0 if you start them yourself with `redrive worker`.
    brokers
        Brokers to run as well, each with its bridge, separated by commas or given several times: `redis`, and
        `rabbitmq`, which is installed if it is missing and can be; or an `outbox`. With REDIS_URL, RABBITMQ_URL or
        OUTBOX_URL set, only the bridge runs, on that server.
    reload
        Restart the workers when a file that they have loaded changes. Steps have ten seconds to finish; what is
        interrupted is tried again.
    quiet
        Do not show what modules log and print, nor warnings of the workers. Their logs are in `.redrive/logs/`.
    fresh
        Delete everything first: all runs and records. Asks for confirmation.
    yes
        Do not ask before `--fresh` deletes everything.
    """
    settings = read_settings() if modules is None else read_settings(modules=modules)
    if fresh:
        await _forget(settings.state_dir, sure=yes)
    stack = Stack(
        settings, ports=listening.ports, workers=workers, console=True, brokers=chosen_brokers(",".join(brokers or ()))
    )
    await _serve(stack, reload=reload, quiet=quiet)


async def _serve(stack: Stack, *, reload: bool, quiet: bool) -> None:
    console.print("starting …")
    tails = {} if quiet else {name: LogTail(file) for name, file in stack.worker_logs.items()}
    async with _shown(stack), _beside(follow(tails, print_log_line)), until_signalled(), stack:
        print_addresses(stack)
        await _print_link(stack)
        try:
            await _watch(stack, reload=reload)
        finally:
            console.print("stopping …")
    console.print("stopped; the next `redrive up` goes on from here")


@contextlib.asynccontextmanager
async def _beside(coroutine: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run something until the block ends."""
    task = asyncio.create_task(coroutine)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _watch(stack: Stack, *, reload: bool) -> None:
    """Until stopped: restart the workers when their files change, or tell that they run the old ones."""
    known: frozenset[Path] = frozenset()

    def loaded() -> frozenset[Path]:
        # A worker that does not start has loaded nothing: what it had loaded is what will be fixed.
        nonlocal known
        known |= stack.loaded_files
        return known

    try:
        async for files in changed_files(Path.cwd(), loaded):
            names = ", ".join(sorted(file.name for file in files & loaded()))
            others = ", ".join(sorted(file.name for file in files - loaded()))
            if names and reload:
                console.print(f"{names} changed: restarting the workers", markup=False, style="cyan")
                await stack.restart_workers(f"{names} changed")
            elif names:
                console.print(
                    f"{names} changed, and the workers run the old code: `redrive up --reload` restarts them",
                    markup=False,
                    style="yellow",
                )
            elif others:
                console.print(f"{others} changed; no worker has loaded it (see --modules)", markup=False, style="dim")
    except OSError as error:
        console.print(f"changes of files are not noticed: {error}", markup=False, style="yellow")
        await asyncio.Event().wait()


def print_log_line(name: str, line: str) -> None:
    """Print a worker's log line, if it is for the author of modules."""
    event = event_for_author(line)
    if event is None:
        return
    text = Text(f"{name} │ ", style="cyan")
    if isinstance(event, str):
        text.append_text(plain(event, "default"))
    else:
        level = str(event.get("level", ""))
        told = {key: value for key, value in said_once(event).items() if key not in _HEAD}
        facts = "".join(f" {key}={value}" for key, value in told.items())
        text.append_text(plain(str(event.get("timestamp", ""))[11:19], "dim"))
        text.append_text(plain(f" {level:<8}", _LEVELS.get(level, "default")))
        text.append_text(plain(str(event.get("event", "")), "bold default"))
        text.append_text(plain(facts, "dim"))
    console.print(text, soft_wrap=True)


async def _forget(state_dir: Path, *, sure: bool) -> None:
    if not sure:
        if not sys.stdin.isatty():
            raise InvalidInput("--fresh: forgets every run and record; add --yes when there is no terminal to ask on")
        if not Confirm.ask(f"Forget every run and record in {state_dir}?", console=console, default=False):
            raise InvalidInput("--fresh: not confirmed; nothing was changed")
    await wipe(state_dir)


def print_addresses(stack: Stack) -> None:
    """Print the addresses, and what to do next."""
    info = stack.info
    database = urlsplit(info.database_url.get_secret_value())
    rows = [
        ("Temporal", f"{info.temporal_address} (namespace {info.namespace})"),
        ("Web UI", info.web_ui or "where your Temporal server has it"),
        ("PostgreSQL", f"{database.hostname}:{database.port or 5432}{database.path}"),
        *([("console", info.console)] if info.console else []),
        *_broker_rows(stack),
        ("task queue", info.task_queue),
        ("modules", ", ".join(info.modules) if info.workers else _start_worker(info.modules)),
    ]
    for name, value in rows:
        console.print(f"  {name:<11}{value}", markup=False, soft_wrap=True)
    console.print("Ctrl-C stops everything; state is kept. `redrive modules` shows what can be started.")


def _start_worker(modules: Sequence[str]) -> str:
    """Say how to start a worker. One with other modules would fail the runs that wait for these."""
    return f"no worker here: start one with `redrive worker --modules {','.join(modules)}`"


def _broker_rows(stack: Stack) -> list[tuple[str, str]]:
    rows = []
    for broker, url in stack.info.brokers.items():
        title, port = _BROKERS[broker]
        place = urlsplit(url.get_secret_value())
        rows.append((title, f"{place.hostname}:{place.port or port}"))
    return rows


async def _print_link(stack: Stack) -> None:
    info = stack.info
    if info.console is None or info.access_url is None or info.owner_url is None:
        return
    logins = Logins(info.access_url.get_secret_value(), info.owner_url.get_secret_value())
    try:
        with database_errors():
            link = await sign_in_link(info.console, logins, stack.token_file)
    except RedriveError as error:
        # Everything runs: that is no reason to stop it.
        console.print(f"no link to sign in with ({error}); `redrive tokens link` makes one", markup=False)
        return
    minutes = f"{LINK_LASTS.total_seconds() / 60:g} minutes"
    console.print(f"sign in, once, within {minutes}: {link}", markup=False, soft_wrap=True)
    console.print(f"programs take the token in {stack.token_file}", markup=False, soft_wrap=True)


@contextlib.asynccontextmanager
async def _shown(stack: Stack) -> AsyncIterator[None]:
    """Show one line for each process, from start to stop."""
    with Live(console=console, auto_refresh=False, transient=True) as live:
        showing = asyncio.create_task(_show_on(live, stack) if console.is_terminal else _print_changes(stack))
        try:
            yield
        finally:
            showing.cancel()
            await asyncio.wait({showing})


async def _show_on(live: Live, stack: Stack) -> None:
    while True:
        table = Table(box=None, show_header=False)
        for status in stack.children.values():
            state = Text(status.state, style=_STYLES.get(status.state, "yellow"))
            table.add_row(status.name, state, *_facts(status))
        live.update(table, refresh=True)
        await stack.wait_changed()


async def _print_changes(stack: Stack) -> None:
    said: dict[str, str] = {}
    while True:
        for name, status in stack.children.items():
            line = "  ".join(part for part in (name, status.state, *_facts(status)) if part)
            started = status.state is not ChildState.STARTING and (status.pid or name in said)
            if started and said.get(name) != line:
                console.print(line, markup=False, soft_wrap=True)
                said[name] = line
        await stack.wait_changed()


def _facts(status: ChildStatus) -> tuple[str, str, str]:
    pid = f"pid {status.pid}" if status.pid else ""
    return pid, f"restarts {status.restarts}", status.note.partition("\n")[0]
