"""Connect to Temporal: by the environment, a Temporal profile, or the embedded stack of this directory.

There is no default address: whoever listens there may be somebody else's server.
Temporal's SDK is imported at the first connection: commands that need only the database's address do without it.
Models are not imported here: who lists runs does without them.
"""

import asyncio
import atexit
import contextlib
import fcntl
import functools
import json
import os
import threading
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from redrive.errors import NotConfigured, Unavailable
from redrive.places import STATE_DIR
from redrive.tracing import interceptors

if TYPE_CHECKING:
    from pydantic import SecretStr
    from temporalio.client import Client
    from temporalio.envconfig import ClientConnectConfig
    from temporalio.runtime import Runtime
    from temporalio.service import ServiceClient

    from redrive.settings import Settings

Connected = TypeVar("Connected")

STACK_FILE = "stack.json"
# Next to it: the logins that clients do not need.
LOGINS_FILE = "logins.json"
LOCK_FILE = "lock"
CONNECT_TIMEOUT = 10.0
SETTLE_TIME = 0.1
# On a machine that is so busy that they do not get a turn.
LONGEST_SETTLE_TIME = 5.0


@dataclass(frozen=True)
class Addresses:
    """Where the servers are, by the environment alone."""

    temporal_address: str | None
    database_url: str | None
    state_dir: Path


def read_addresses() -> Addresses:
    """Read the environment for a command that needs no other setting: all of them, with their models, take long."""
    return Addresses(
        temporal_address=os.environ.get("TEMPORAL_ADDRESS"),
        database_url=os.environ.get("DATABASE_URL"),
        state_dir=Path(os.environ.get("REDRIVE_STATE_DIR") or STATE_DIR),
    )


async def connect_temporal(settings: "Settings", runtime: "Runtime | None" = None) -> "Client":
    """Connect to Temporal, or say what to do if it does not answer. `runtime` is where its metrics go."""
    from temporalio.client import Client  # noqa: PLC0415

    from redrive.payloads import data_converter  # noqa: PLC0415

    config = _profile(settings.temporal_profile)
    if settings.temporal_address:
        config["target_host"] = settings.temporal_address
    if settings.temporal_namespace:
        config["namespace"] = settings.temporal_namespace
    _add_address(config, settings.state_dir)
    client = Client.connect(**config, data_converter=data_converter, interceptors=interceptors(), runtime=runtime)
    return await _answered(client, config["target_host"])


async def connect_service() -> "tuple[ServiceClient, str]":
    """Connect to Temporal's service by the environment alone; return it with the namespace.

    That is all that a list needs. Neither the SDK's client nor the settings, with all their models, are loaded.
    """
    from temporalio.service import ConnectConfig, ServiceClient  # noqa: PLC0415

    config = _profile(None)
    _add_address(config, read_addresses().state_dir)
    server: dict[str, Any] = {name: value for name, value in config.items() if name != "namespace"}
    service = await _answered(ServiceClient.connect(ConnectConfig(**server)), config["target_host"])
    return service, config.get("namespace") or "default"


async def _answered(connection: Awaitable[Connected], address: str) -> Connected:
    settle_at_exit()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            return await connection
    except (RuntimeError, TimeoutError) as error:
        raise Unavailable(
            f"no Temporal server answers at {address} ({_reason(error)}): "
            "start one with `redrive up`, or set TEMPORAL_ADDRESS"
        ) from error


@functools.cache
def settle_at_exit() -> None:
    """Give Temporal's native threads time to release Python at exit: otherwise they abort the process (SIGABRT)."""
    # https://github.com/temporalio/sdk-python/issues/300: there is nothing to close or to wait for.
    atexit.register(_settle)


def _settle() -> None:
    give_up = time.monotonic() + LONGEST_SETTLE_TIME
    time.sleep(SETTLE_TIME)
    while _other_threads_run() and time.monotonic() < give_up:
        time.sleep(SETTLE_TIME)


def _other_threads_run() -> bool:
    """Tell whether another thread of this process runs, or waits for its turn; False where the system does not say."""
    own = str(threading.get_native_id())
    for thread in Path("/proc/self/task").glob("*"):
        # A thread may end meanwhile.
        with contextlib.suppress(OSError):
            state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
            if thread.name != own and state == "R":
                return True
    return False


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_TIMEOUT:g} s"
    # The SDK shows the whole Rust error, a page of it.
    return "connection refused" if "ConnectionRefused" in str(error) else str(error)[:200]


def _profile(name: str | None) -> "ClientConnectConfig":
    """Return what Temporal's own variables and its configuration file say."""
    from temporalio.envconfig import ClientConfigProfile  # noqa: PLC0415

    try:
        return ClientConfigProfile.load(profile=name).to_client_connect_config()
    except RuntimeError as error:
        raise Unavailable(f"the Temporal profile cannot be read: {error}") from error


def _add_address(config: "ClientConnectConfig", state_dir: Path) -> None:
    if not config.get("target_host"):
        config["target_host"] = _of_stack(state_dir, "Temporal server", "TEMPORAL_ADDRESS", "temporal_address")


def database_url(settings: "Settings | Addresses") -> str:
    """Return the address of the database, or raise if there is none."""
    url = settings.database_url
    if url is not None:
        return url if isinstance(url, str) else url.get_secret_value()
    return embedded(settings, "database", "DATABASE_URL", "database_url")


def access_database_url(settings: "Settings") -> str:
    """Return the database address of the login that opens sessions and creates tokens, or the only one set."""
    return _with_login(settings, settings.access_database_url, "access_url")


def owner_database_url(settings: "Settings") -> str:
    """Return the database address of the login that owns the tables, or the only one set."""
    return _with_login(settings, settings.owner_database_url, "owner_url")


def _with_login(settings: "Settings", chosen: "SecretStr | None", name: str) -> str:
    if chosen is not None:
        return chosen.get_secret_value()
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    return _read(stack_directory(settings) / LOGINS_FILE, name) or database_url(settings)


def stack_directory(settings: "Settings | Addresses") -> Path:
    """Return the state directory of this directory's stack; if it has none, that of the nearest one above it."""
    return _nearest(settings.state_dir)


def _nearest(state_dir: Path) -> Path:
    nearest = state_dir.absolute()
    if state_dir.is_absolute() or nearest.exists():
        return nearest
    above = (parent / state_dir for parent in Path.cwd().parents)
    # One that somebody else has put there, say in /tmp, is not ours.
    return next((each for each in above if each.is_dir() and each.stat().st_uid == os.geteuid()), nearest)


def embedded(settings: "Settings | Addresses", what: str, variable: str, *names: str) -> str:
    """Return an address of this directory's stack, or raise which variable to set. Nothing else is a default."""
    return _of_stack(settings.state_dir, what, variable, *names)


def _of_stack(state_dir: Path, what: str, variable: str, *names: str) -> str:
    directory = _nearest(state_dir)
    if not directory.is_dir():
        raise NotConfigured(f"there is no {what} here: start a stack with `redrive up`, or set {variable}")
    if not is_locked(directory / LOCK_FILE):
        raise Unavailable(f"the stack of {directory} does not run: start it with `redrive up`, or set {variable}")
    found = _read(directory / STACK_FILE, *names)
    if found is None or _read(directory / STACK_FILE, "pid") != lock_holder(directory / LOCK_FILE):
        raise Unavailable(f"the stack of {directory} is starting, or has no {what}: wait, or set {variable}")
    return found


def is_locked(file: Path) -> bool:
    """Tell whether a running stack holds its lock. A file with addresses may be left over from one that was killed."""
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def lock_holder(file: Path) -> str:
    """Return the process that holds a stack's lock. Addresses of another one were left by a stack that crashed."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _read(file: Path, *names: str) -> str | None:
    try:
        value = json.loads(file.read_text())
        for name in names:
            value = value[name]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if value is None else str(value)
