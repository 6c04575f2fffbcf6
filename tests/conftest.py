"""What all tests share: one embedded stack for the session; a task queue and tenant of its own for each test."""

import asyncio
import contextlib
import gc
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import pytest
import structlog
from temporalio.client import Client
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # it has no marker

from redrive import Redrive, Registry
from redrive.connection import connect_temporal
from redrive.settings import Settings
from redrive.starter.stack.postgres import SETTINGS
from redrive.starter.stack.stack import Stack
from redrive.starter.stack.state import StackInfo
from redrive.starter.stack.temporal_server import DYNAMIC_CONFIG
from redrive.worker import running_worker
from tests.database import close_connections, fetch

T = TypeVar("T")

# They share a server of a fixture for all tests of a process.
WITH_RABBITMQ = {
    "tests/browser/test_brokers.py",
    "tests/integration/bridges/test_hostile_messages.py",
    "tests/integration/bridges/test_rabbitmq_conformance.py",
    "tests/integration/bridges/test_rabbitmq_kills.py",
    "tests/integration/bridges/test_retry_scheduler.py",
    "tests/integration/traces/test_bridges.py",
}

# Temporal's servers collect garbage less often.
os.environ |= {"GOGC": "400", "GOMEMLIMIT": "800MiB"}

# As our programs log: a traceback with the values of all variables takes longer than a worker may be blocked.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)

# A shell that runs the tests in the background makes them, and every process they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Begin to install what tests of a whole run will ask for: all its processes would wait for it together."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        stack = contextlib.ExitStack()
        stack.enter_context(subprocess.Popen([sys.executable, "-m", "tests.debian"], cwd=Path(__file__).parents[1]))
        config.add_cleanup(stack.close)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give each file to one process, and all files that use RabbitMQ to the same one: it takes long to start."""
    if config.getoption("dist") != "loadfile":
        return None
    scheduling = LoadFileScheduling(config, log)
    file_of = scheduling._split_scope
    scheduling._split_scope = lambda test: "rabbitmq" if file_of(test) in WITH_RABBITMQ else file_of(test)
    return scheduling


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the files of a whole run: beside those whose tests wait for servers there are always some that compute."""
    if not hasattr(config, "workerinput"):
        return
    files: dict[str, dict[Path, list[pytest.Item]]] = {}
    for item in items:
        directory = item.path.relative_to(Path(__file__).parent).parts[0]
        files.setdefault(directory, {}).setdefault(item.path, []).append(item)
    # Backwards, so that what needs a package that is being installed comes later.
    integration = [*reversed(files.pop("integration", {}).values())]
    waiting = [*reversed(files.pop("acceptance", {}).values()), *files.pop("browser", {}).values()]
    share = len(integration) // max(len(waiting), 1)
    ordered: list[list[pytest.Item]] = []
    for number, file in enumerate(waiting):
        ordered += [file, *integration[number * share : (number + 1) * share]]
    ordered += integration[len(waiting) * share :]
    # Unit tests are short: with them, all processes end together. Backwards, as the longest are not the first.
    ordered += [file for directory in files.values() for file in reversed(directory.values())]
    items[:] = itertools.chain(*ordered)


def pytest_collection_finish() -> None:
    """Leave what is loaded to itself, as our programs do, and look for garbage less often than every 700 objects."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


@pytest.fixture(scope="session")
async def stack() -> AsyncIterator[StackInfo]:
    """A real Temporal server and a real PostgreSQL, without workers."""
    with tempfile.TemporaryDirectory() as directory:
        # PostgreSQL does not run as root: its account has to get through here.
        Path(directory).chmod(0o711)
        async with contextlib.AsyncExitStack() as servers:
            with pytest.MonkeyPatch.context() as patch:
                # Each test has queues of its own: the server would sum up the metrics of all, and
                # those that nobody polls any more are kept for five minutes.
                patch.setitem(DYNAMIC_CONFIG, "metrics.breakdownByTaskQueue", False)
                patch.setitem(DYNAMIC_CONFIG, "matching.maxTaskQueueIdleTime", "90s")
                # Tests make thousands of connections: by default each takes a client 4096 rounds of hashing.
                patch.setitem(SETTINGS, "scram_iterations", "1")
                started = Stack(Settings(), state_dir=Path(directory) / "state", workers=0)
                running = await servers.enter_async_context(started)
            if "postgres" in running.info.children:
                await _hash_again(owner_url(running.info))
            yield running.info
            await close_connections()


async def _hash_again(url: str) -> None:
    """Set the owner's password again: it was hashed before the server had the setting."""
    user, password = urlsplit(url).username, urlsplit(url).password
    await fetch(url, f"ALTER ROLE {user} PASSWORD '{password}'")


def owner_url(stack: StackInfo) -> str:
    """Return the database's address by the login that owns the tables, for tests that look into them."""
    assert stack.owner_url
    return stack.owner_url.get_secret_value()


def access_url(stack: StackInfo) -> str:
    """Return the database's address by the login that lets people in."""
    assert stack.access_url
    return stack.access_url.get_secret_value()


@pytest.fixture
def settings(stack: StackInfo, tmp_path: Path) -> Settings:
    """Settings for the session's servers, with a task queue of the test's own."""
    return Settings(
        temporal_address=stack.temporal_address,
        database_url=stack.database_url,
        access_database_url=stack.access_url,
        owner_database_url=stack.owner_url,
        state_dir=tmp_path,
        task_queue=f"queue-{uuid.uuid4().hex[:12]}",
    )


@pytest.fixture
async def temporal(settings: Settings) -> Client:
    """A plain Temporal client."""
    return await connect_temporal(settings)


@pytest.fixture
def registry() -> Registry:
    """An empty registry."""
    return Registry()


@dataclass(frozen=True)
class Running:
    """A worker that runs in this process, and a client of it."""

    redrive: Redrive
    temporal: Client
    settings: Settings


WorkerFactory = Callable[..., contextlib.AbstractAsyncContextManager[Running]]


@pytest.fixture
def worker(settings: Settings, temporal: Client, registry: Registry) -> WorkerFactory:
    """Run a worker for the test's registry: `async with worker() as running`."""

    @contextlib.asynccontextmanager
    async def run(**changes: object) -> AsyncIterator[Running]:
        chosen = settings.model_copy(update=changes)
        async with running_worker(chosen, registry):
            redrive = Redrive(temporal, task_queue=chosen.task_queue, registry=registry)
            yield Running(redrive, temporal, chosen)

    return run


async def eventually(ask: Callable[[], Awaitable[T | None]], *, within: float = 45.0) -> T:
    """Return the first answer that is true, or fail."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    for pause in pauses():
        answer = await ask()
        if answer:
            return answer
        if loop.time() > deadline:
            break
        await asyncio.sleep(pause)
    pytest.fail(f"still {answer!r} after {within} s")


def pauses() -> Iterator[float]:
    """Yield how long to wait before each further question: to ask a server often keeps it from its work."""
    return itertools.chain((0.02, 0.03, 0.05, 0.07, 0.1), itertools.repeat(0.15))
