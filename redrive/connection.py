"""Connect to Temporal: by the environment, a Temporal profile, or the embedded stack of this directory.

Temporal's SDK is imported at the first connection: commands that need only the database's address do without it.
"""

import asyncio
import atexit
import functools
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

from redrive.contracts import Broker
from redrive.errors import Unavailable
from redrive.settings import Settings
from redrive.tracing import interceptors

if TYPE_CHECKING:
    from temporalio.client import Client
    from temporalio.envconfig import ClientConnectConfig
    from temporalio.runtime import Runtime

STACK_FILE = "stack.json"
# Next to it: the logins that clients do not need.
LOGINS_FILE = "logins.json"
DEFAULT_ADDRESS = "localhost:7233"
CONNECT_TIMEOUT = 10.0
SETTLE_TIME = 0.1


async def connect_temporal(settings: Settings, runtime: "Runtime | None" = None) -> "Client":
    """Connect to Temporal, or say what to do if it does not answer. `runtime` is where its metrics go."""
    from temporalio.client import Client  # noqa: PLC0415

    from redrive.payloads import data_converter  # noqa: PLC0415

    config = _connect_config(settings)
    _settle_at_exit()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            return await Client.connect(
                **config, data_converter=data_converter, interceptors=interceptors(), runtime=runtime
            )
    except (RuntimeError, TimeoutError) as error:
        raise Unavailable(
            f"no Temporal server answers at {config['target_host']} ({_reason(error)}): "
            "start one with `redrive up`, or set TEMPORAL_ADDRESS"
        ) from error


@functools.cache
def _settle_at_exit() -> None:
    """Give Temporal's native threads time to release Python at exit: otherwise they abort the process (SIGABRT)."""
    # https://github.com/temporalio/sdk-python/issues/300: there is nothing to close or to wait for.
    atexit.register(time.sleep, SETTLE_TIME)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_TIMEOUT:g} s"
    # The SDK shows the whole Rust error, a page of it.
    return "connection refused" if "ConnectionRefused" in str(error) else str(error)[:200]


def _connect_config(settings: Settings) -> "ClientConnectConfig":
    from temporalio.envconfig import ClientConfigProfile  # noqa: PLC0415

    try:
        config = ClientConfigProfile.load(profile=settings.temporal_profile).to_client_connect_config()
    except RuntimeError as error:
        raise Unavailable(f"the Temporal profile cannot be read: {error}") from error
    if settings.temporal_address:
        config["target_host"] = settings.temporal_address
    if settings.temporal_namespace:
        config["namespace"] = settings.temporal_namespace
    config.setdefault("target_host", embedded_address(settings.state_dir) or DEFAULT_ADDRESS)
    return config


def database_url(settings: Settings) -> str:
    """Return the address of the database, or raise if there is none."""
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    embedded = _embedded(settings.state_dir / STACK_FILE, "database_url")
    if embedded is None:
        raise Unavailable("there is no database: start one with `redrive up`, or set DATABASE_URL")
    return embedded


def access_database_url(settings: Settings) -> str:
    """Return the database address of the login that opens sessions and creates tokens, or the only one set."""
    return _with_login(settings, settings.access_database_url, "access_url")


def owner_database_url(settings: Settings) -> str:
    """Return the database address of the login that owns the tables, or the only one set."""
    return _with_login(settings, settings.owner_database_url, "owner_url")


def _with_login(settings: Settings, chosen: SecretStr | None, name: str) -> str:
    if chosen is not None:
        return chosen.get_secret_value()
    embedded = None if settings.database_url else _embedded(settings.state_dir / LOGINS_FILE, name)
    return embedded or database_url(settings)


def embedded_address(state_dir: Path) -> str | None:
    """Return the address of the embedded Temporal server of this directory, if one was started."""
    return _embedded(state_dir / STACK_FILE, "temporal_address")


def embedded_broker(state_dir: Path, broker: Broker) -> str | None:
    """Return the address of a broker of this directory's stack, if it has one."""
    return _embedded(state_dir / STACK_FILE, "brokers", broker)


def _embedded(file: Path, *names: str) -> str | None:
    try:
        value = json.loads(file.read_text())
        for name in names:
            value = value[name]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if value is None else str(value)
