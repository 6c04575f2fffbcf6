"""The processes of a stack as programs: workers, the console, and the bridges from the brokers that it may run."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from pydantic import SecretStr

from redrive.bridges.events.settings import EventSettings
from redrive.bridges.rabbitmq.settings import RetrySettings
from redrive.contracts import Broker
from redrive.outbox.settings import OutboxSettings
from redrive.settings import read_environment
from redrive.starter.cli.errors import WrongUsage
from redrive.starter.stack.children import Program
from redrive.starter.stack.placement import ServerPlace
from redrive.starter.stack.ports import LOOPBACK, ChoosePort, listens
from redrive.starter.stack.rabbitmq import RABBITMQ_ACCOUNTS, get_rabbitmq, place_rabbitmq
from redrive.starter.stack.redis import REDIS_ACCOUNTS, find_redis, place_redis
from redrive.starter.stack.state import StackInfo

# A user's own Temporal settings (TLS, keys, profiles) are for another server and would keep a worker from this one.
_FOREIGN: Final = "TEMPORAL_"
_METRICS: Final = "REDRIVE_METRICS_ADDRESS"
# By name, not by file: the file's directory would come first on the path, and hide modules of Python's own.
_START: Final = (sys.executable, "-m", "redrive.processes.start")
WORKER: Final = (*_START, "redrive.worker")
# Workers and bridges handle no sign-ins and own nothing.
_OTHER_LOGINS: Final = ("REDRIVE_ACCESS_DATABASE_URL", "REDRIVE_OWNER_DATABASE_URL")
CONSOLE_PORT: Final = 8300
# The RabbitMQ bridge serves its health and metrics here.
_HEALTH_VARIABLE: Final = "HTTP_PORT"
_HEALTH_PORT: Final = 8086
# The brokers that a stack has a bridge from, with the address of each that is the user's own server.
Brokers = Mapping[Broker, SecretStr | None]


def worker_environment(info: StackInfo, *, state_dir: Path, embedded_temporal: bool) -> dict[str, str]:
    """Build the environment that connects a worker to the stack's servers."""
    environment = {name: value for name, value in os.environ.items() if name not in _OTHER_LOGINS}
    if embedded_temporal:
        environment = {name: value for name, value in environment.items() if not name.startswith(_FOREIGN)}
        environment["TEMPORAL_CONFIG_FILE"] = os.devnull
    return environment | {
        "TEMPORAL_ADDRESS": info.temporal_address,
        "TEMPORAL_NAMESPACE": info.namespace,
        "DATABASE_URL": info.database_url.get_secret_value(),
        "REDRIVE_MODULES": ",".join(info.modules),
        "REDRIVE_TASK_QUEUE": info.task_queue,
        "REDRIVE_STATE_DIR": str(state_dir),
    }


def nth_worker(environment: Mapping[str, str], number: int) -> dict[str, str]:
    """Return the environment of the worker with this number: each serves its metrics on the next port."""
    host, _, port = environment.get(_METRICS, "").rpartition(":")
    if not port.isdecimal() or int(port) == 0:
        return dict(environment)
    return {**environment, _METRICS: f"{host}:{int(port) + number - 1}"}


def worker_program(name: str, command: Sequence[str], environment: Mapping[str, str], ready_file: Path) -> Program:
    """Describe one worker; it is ready when it has written the file that REDRIVE_READY_FILE names."""
    return Program(
        name=name,
        title=f"the worker {name!r}" if name != "worker" else "the worker",
        command=command,
        environment={**environment, "REDRIVE_READY_FILE": str(ready_file)},
        prepare=partial(asyncio.to_thread, ready_file.unlink, missing_ok=True),
        ready=partial(asyncio.to_thread, ready_file.exists),
    )


def console_address(port: int) -> str:
    """Return the console's address for browsers."""
    return f"http://{LOOPBACK}:{port}"


def console_program(environment: Mapping[str, str], port: int, **settings: str | None) -> Program:
    """Describe the console, with its own settings; it is ready when it listens."""
    own = {"REDRIVE_CONSOLE_ADDRESS": f"{LOOPBACK}:{port}"}
    own |= {f"REDRIVE_{name.upper()}": value for name, value in settings.items() if value}
    return Program(
        name="console",
        title="the console",
        command=(*_START, "redrive.processes.console"),
        environment={**environment, **own},
        ready=partial(listens, port),
    )


class BrokerServer(Protocol):
    """A broker that the stack runs itself."""

    @property
    def url(self) -> str:
        """The address for clients."""

    @property
    def children(self) -> Sequence[Program]:
        """Its programs; each is started when those before it are ready."""


class FoundServer(NamedTuple):
    """A broker's program, the accounts that packages create for it, and what builds the server.

    `make` is given its place and the requested port, and chooses other ports.
    """

    program: Path
    accounts: tuple[str, ...]
    make: Callable[[ServerPlace, int | None, ChoosePort], BrokerServer]


def chosen_brokers(names: str) -> Brokers:
    """Read `redis` and the like, separated by commas."""
    chosen = {name.strip() for name in names.split(",") if name.strip()}
    for name in sorted(chosen - set(Broker)):
        raise WrongUsage(f"--with {name!r}: not a broker that comes along; there are: {', '.join(Broker)}")
    return {broker: _own_server(broker) for broker in Broker if broker in chosen}


def _own_server(broker: Broker) -> SecretStr | None:
    if broker is Broker.REDIS:
        return read_environment(EventSettings).redis_url
    if broker is Broker.OUTBOX:
        return read_environment(OutboxSettings).database
    return read_environment(RetrySettings).rabbitmq_url


async def find_servers(brokers: Brokers) -> dict[Broker, FoundServer]:
    """Find the programs of the stack's own brokers; a missing one may be installed."""
    # An outbox is in the stack's own PostgreSQL.
    own = [broker for broker, url in brokers.items() if url is None and broker is not Broker.OUTBOX]
    return {broker: await asyncio.to_thread(_find, broker) for broker in own}


def _find(broker: Broker) -> FoundServer:
    if broker is Broker.REDIS:
        return FoundServer(find_redis(), REDIS_ACCOUNTS, place_redis)
    programs = get_rabbitmq()
    return FoundServer(programs.server, RABBITMQ_ACCOUNTS, partial(place_rabbitmq, programs))


def bridge_environment(
    broker: Broker, url: SecretStr, worker: Mapping[str, str], choose_port: ChoosePort
) -> dict[str, str]:
    """Build the environment that connects a bridge to the stack's servers, from that of a worker."""
    environment = {**worker, f"{broker.upper()}_URL": url.get_secret_value()}
    if broker is Broker.RABBITMQ and _HEALTH_VARIABLE not in environment:
        environment[_HEALTH_VARIABLE] = str(choose_port("the bridge's health", None, _HEALTH_PORT))
    return environment


def bridge_program(broker: Broker, environment: Mapping[str, str], ready: Path) -> Program:
    """Describe a bridge; it is ready when it has written the file that REDRIVE_READY_FILE names."""
    name = f"bridge-{broker}"
    ready_file = ready / name
    return Program(
        name=name,
        title=f"the bridge from {broker}",
        command=(*_START, "redrive.starter.cli.main", "bridge", broker),
        environment={**environment, "REDRIVE_READY_FILE": str(ready_file)},
        prepare=partial(asyncio.to_thread, ready_file.unlink, missing_ok=True),
        ready=partial(asyncio.to_thread, ready_file.exists),
    )
