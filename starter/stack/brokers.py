"""The brokers that a stack may run besides its servers, and the bridges from them as programs."""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from pydantic import SecretStr

from redrive.bridges.events.settings import EventSettings
from redrive.bridges.rabbitmq.settings import RetrySettings
from redrive.contracts import Broker
from redrive.settings import read_environment
from redrive.starter.cli.errors import WrongUsage
from redrive.starter.stack.child import Program
from redrive.starter.stack.placement import ServerPlace
from redrive.starter.stack.ports import ChoosePort
from redrive.starter.stack.rabbitmq import RABBITMQ_ACCOUNTS, get_rabbitmq, place_rabbitmq
from redrive.starter.stack.redis import REDIS_ACCOUNTS, find_redis, place_redis

# The RabbitMQ bridge serves its health and metrics here.
_HEALTH_VARIABLE: Final = "HTTP_PORT"
_HEALTH_PORT: Final = 8086

# The brokers that a stack has a bridge from, with the address of each that is the user's own server.
Brokers = Mapping[Broker, SecretStr | None]


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
    return read_environment(RetrySettings).rabbitmq_url


async def find_servers(brokers: Brokers) -> dict[Broker, FoundServer]:
    """Find the programs of the stack's own brokers; a missing one may be installed."""
    return {broker: await asyncio.to_thread(_find, broker) for broker, url in brokers.items() if url is None}


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
        command=[sys.executable, "-m", "redrive.starter.cli.main", "bridge", broker],
        environment={**environment, "REDRIVE_READY_FILE": str(ready_file)},
        prepare=partial(asyncio.to_thread, ready_file.unlink, missing_ok=True),
        ready=partial(asyncio.to_thread, ready_file.exists),
    )
