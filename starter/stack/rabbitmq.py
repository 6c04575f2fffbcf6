"""The embedded RabbitMQ: Debian's package, run directly with our own ports and directories.

It comes with a name server (epmd) that it would leave behind as a daemon: ours is a child like the others.
"""

import asyncio
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from redrive.errors import StackError
from redrive.starter.stack.children import Program
from redrive.starter.stack.placement import Account, ServerPlace, hand_over
from redrive.starter.stack.ports import LOOPBACK, ChoosePort, listens
from redrive.starter.stack.state import write_private, writing

RABBITMQ_PORT: Final = 5672
# Not the usual 25672 and 4369, which the system's own RabbitMQ would use.
CLUSTER_PORT: Final = 25772
NAMES_PORT: Final = 14369
RABBITMQ_ACCOUNTS: Final = ("rabbitmq",)
WHAT_TO_DO: Final = (
    "RabbitMQ is missing: install it (`apt-get install rabbitmq-server`), or set RABBITMQ_URL to a server of yours"
)
_USER: Final = "redrive"
# Not with the port in it, which may be another one at the next start. Each stack has its own name server.
_NODE: Final = "redrive@localhost"
_INSTALLATIONS: Final = Path("/usr/lib/rabbitmq/lib")
_NAME_SERVERS: Final = (Path("/usr/bin/epmd"), Path("/usr/lib/erlang/bin/epmd"))
_SERVICE_POLICY: Final = Path("/usr/sbin/policy-rc.d")
_INSTALL_TIMEOUT: Final = 240
_SIGN_IN_TIMEOUT: Final = 5.0


@dataclass(frozen=True)
class Programs:
    """Where RabbitMQ's programs are."""

    server: Path
    names: Path


@dataclass(frozen=True)
class RabbitMQ:
    """Where the server listens and keeps its data, and its password."""

    programs: Programs
    directory: Path
    password: str
    port: int
    cluster_port: int
    names_port: int
    account: Account | None = None

    @property
    def url(self) -> str:
        """The address for clients, with the password."""
        return f"amqp://{_USER}:{self.password}@{LOOPBACK}:{self.port}/"

    @property
    def children(self) -> list[Program]:
        """The name server, without which RabbitMQ does not start, and the server."""
        return [self._names_child, self._server_child]

    @property
    def _names_child(self) -> Program:
        return Program(
            name="rabbitmq-names",
            title="RabbitMQ's name server",
            command=[str(self.programs.names), "-port", str(self.names_port), "-address", LOOPBACK],
            ready=self._names_are_served,
            environment=self._environment,
            directory=Path("/"),
            account=self.account,
        )

    @property
    def _server_child(self) -> Program:
        return Program(
            name="rabbitmq",
            title="RabbitMQ",
            command=[str(self.programs.server)],
            ready=self.is_ready,
            prepare=self.prepare,
            environment=self._environment,
            directory=Path("/"),
            account=self.account,
            grace=timedelta(seconds=20),
        )

    @property
    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            # Erlang keeps its cookie there.
            "HOME": str(self.directory),
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self.names_port),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            # The script then becomes the server instead of waiting for it, so that it dies with us.
            "RUNNING_UNDER_SYSTEMD": "1",
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CONFIG_FILE": str(self._config),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "enabled_plugins"),
            "RABBITMQ_NODENAME": node_name(self._data),
            "RABBITMQ_DIST_PORT": str(self.cluster_port),
            "RABBITMQ_MNESIA_DIR": str(self._data),
            "RABBITMQ_LOG_BASE": str(self.directory),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _config(self) -> Path:
        return self.directory / "rabbitmq.conf"

    async def prepare(self) -> None:
        """Write the configuration. User and password matter at the first start only."""
        owner = (self.account.uid, self.account.gid) if self.account else None
        with writing(self.directory):
            await asyncio.to_thread(hand_over, self.directory, self.account)
        write_private(self.directory / "enabled_plugins", "[].\n", owner)
        lines = {
            "listeners.tcp.local": f"{LOOPBACK}:{self.port}",
            "default_user": _USER,
            "default_pass": self.password,
            "log.console.level": "warning",
        }
        write_private(self._config, "".join(f"{name} = {value}\n" for name, value in lines.items()), owner)

    async def is_ready(self) -> bool:
        """Sign in."""
        if not await listens(self.port):
            return False
        import aiormq  # noqa: PLC0415  # a stack without RabbitMQ starts sooner

        try:
            async with asyncio.timeout(_SIGN_IN_TIMEOUT):
                connection = await aiormq.connect(self.url)
                await connection.close()
        except (aiormq.AMQPError, OSError, TimeoutError):
            return False
        return True

    async def _names_are_served(self) -> bool:
        return await listens(self.names_port)


def place_rabbitmq(programs: Programs, place: ServerPlace, asked: int | None, choose_port: ChoosePort) -> RabbitMQ:
    """Build a server, on the requested port, if any."""
    return RabbitMQ(
        programs=programs,
        directory=place.data,
        account=place.account,
        password=keep_password(place.home),
        port=choose_port("RabbitMQ", asked, RABBITMQ_PORT),
        cluster_port=choose_port("RabbitMQ's cluster", None, CLUSTER_PORT),
        names_port=choose_port("RabbitMQ's name server", None, NAMES_PORT),
    )


def keep_password(directory: Path) -> str:
    """Read the password of the data's user; create one if there is no data yet."""
    file = directory.with_name(f"{directory.name}.password")
    if not file.exists():
        write_private(file, secrets.token_hex(16) + "\n")
    return file.read_text(encoding="utf-8").strip()


def node_name(data: Path) -> str:
    """Return the name of the node that the data belongs to: RabbitMQ does not start on that of another one."""
    try:
        members = (data / "cluster_nodes.config").read_text(encoding="utf-8")
    except OSError:
        return _NODE
    found = re.search(r"redrive[\w-]*@localhost", members)
    return found[0] if found else _NODE


def get_rabbitmq() -> Programs:
    """Find RabbitMQ, installing it if it is missing and can be; or say in one sentence what to do."""
    found = _find()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _install()
        found = _find()
    if found is None:
        raise StackError(WHAT_TO_DO)
    return found


def _find() -> Programs | None:
    servers = sorted(_INSTALLATIONS.glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    names = [path for path in _NAME_SERVERS if path.exists()]
    return Programs(servers[-1], names[0]) if servers and names else None


def _install() -> None:
    with _services_stay_off():
        for words in (["update"], ["install", "--yes", "--no-install-recommends", "rabbitmq-server"]):
            subprocess.run(
                ["apt-get", "--quiet", "-o", "DPkg::Lock::Timeout=120", *words],
                check=False,
                capture_output=True,
                timeout=_INSTALL_TIMEOUT,
                env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            )


@contextmanager
def _services_stay_off() -> Iterator[None]:
    """Keep the package from starting the system's own server, by Debian's mechanism."""
    if _SERVICE_POLICY.exists():
        yield
        return
    _SERVICE_POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
    _SERVICE_POLICY.chmod(0o755)
    try:
        yield
    finally:
        _SERVICE_POLICY.unlink(missing_ok=True)
