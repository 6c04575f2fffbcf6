"""A Temporal cluster on PostgreSQL: its parts, started in order and set up by the scripts of the compose file."""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import yaml
from pydantic import BaseModel, SecretStr
from temporalio.client import Client
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig

from redrive.connection import connect_temporal
from redrive.settings import Settings
from redrive.starter.stack.children import Program
from redrive.starter.stack.ports import reserve
from redrive.starter.stack.temporal_server import DEFAULT_NAMESPACE, find_temporal
from redrive.store.migrate import migrate
from tests.cluster.database import ClusterDatabase, place_database
from tests.cluster.network import Network, made_network
from tests.cluster.part import Part, answers, run_script
from tests.cluster.server_build import ROOT, ServerPrograms, build_server

NODES = 2
FRONTEND_PORT = 7233
_FOREIGN = ("REDRIVE_", "TEMPORAL_", "DATABASE_URL")
_SETUP = ROOT / "deploy" / "temporal"
_DYNAMIC_CONFIG = "dynamic-config.yaml"


def compose_service(name: str) -> "ComposeService":
    """Return a service of the compose file."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    return ComposeService.model_validate(services[name])


class ComposeService(BaseModel):
    """What a service runs with."""

    environment: dict[str, str]
    command: list[str] = []


@dataclass(frozen=True)
class Cluster:
    """The parts of a cluster, and how to reach them."""

    folder: Path
    network: Network
    database: ClusterDatabase
    programs: ServerPrograms
    balancer_port: int
    postgres: Part
    nodes: tuple[Part, ...]
    balancer: Part

    @property
    def address(self) -> str:
        """Temporal's address for clients."""
        return f"{self.network.host}:{self.balancer_port}"

    def node_address(self, node: int) -> str:
        """Return the address of one node, past the balancer."""
        return f"{self.network.nodes[node]}:{FRONTEND_PORT}"

    @property
    def dynamic_config(self) -> Path:
        """The nodes' dynamic configuration: a copy of the shipped one."""
        return self.folder / _DYNAMIC_CONFIG

    @property
    def environment(self) -> dict[str, str]:
        """The environment of Redrive's processes: the compose file's variables, with this cluster's addresses."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        return inherited | {
            "PYTHONPATH": str(ROOT),
            "TEMPORAL_ADDRESS": self.address,
            "TEMPORAL_NAMESPACE": DEFAULT_NAMESPACE,
            "TEMPORAL_CONFIG_FILE": os.devnull,
            "DATABASE_URL": self.database.url("redrive_app"),
            "REDRIVE_LOG_FORMAT": "json",
            "REDRIVE_STATE_DIR": str(self.folder / "redrive"),
        }

    @property
    def logins(self) -> dict[str, str]:
        """The variables of the other two logins, for consoles and operators."""
        return {
            "REDRIVE_OWNER_DATABASE_URL": self.database.url("redrive"),
            "REDRIVE_ACCESS_DATABASE_URL": self.database.url("redrive_console"),
        }

    async def client(self) -> Client:
        """Connect as Redrive's own processes do."""
        # Every call that is tried again would be a line; here they are by the hundred.
        quiet = Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter="error")))
        return await connect_temporal(
            Settings(temporal_address=self.address, database_url=SecretStr(self.database.url("redrive_app"))), quiet
        )

    async def set_up_temporal(self) -> None:
        """Make Temporal's databases with the compose file's script, and start the nodes."""
        await self.run_schema_script()
        for node in self.nodes:
            await node.start()
        await self.run_namespace_script()

    async def run_schema_script(self) -> str:
        """Run the script of the service `temporal-schema`."""
        environment = compose_service("temporal-schema").environment | {
            "SQL_HOST": self.network.host,
            "SQL_PORT": str(self.database.port),
            "SQL_PASSWORD": self.database.passwords["temporal"],
            "TEMPORAL_SCHEMAS": str(self.programs.schemas),
        }
        return await run_script("/bin/sh", str(_SETUP / "schema.sh"), environment=environment | self._path)

    async def run_namespace_script(self, retention: str = "168h") -> str:
        """Run the script of the service `temporal-namespace`, with its arguments."""
        service = compose_service("temporal-namespace")
        environment = {
            "TEMPORAL_ADDRESS": self.address,
            "TEMPORAL_NAMESPACE": DEFAULT_NAMESPACE,
            "RETENTION": retention,
        }
        words = service.command[1:]
        return await run_script("/bin/sh", str(_SETUP / "namespace.sh"), *words, environment=environment | self._path)

    @property
    def _path(self) -> dict[str, str]:
        return {"PATH": f"{self.programs.folder}:{find_temporal().parent}:/usr/bin:/bin"}


@contextlib.asynccontextmanager
async def running_cluster() -> AsyncIterator[Cluster]:
    """Build what is missing, bring a cluster up, and remove it at the end."""
    programs = build_server()
    with (
        tempfile.TemporaryDirectory(prefix="redrive-cluster-", ignore_cleanup_errors=True) as directory,
        made_network(NODES) as network,
    ):
        folder = Path(directory)
        # PostgreSQL does not run as root: its account has to get through here.
        folder.chmod(0o711)
        cluster = _describe(folder, network, programs)
        shutil.copy(_SETUP / _DYNAMIC_CONFIG, cluster.dynamic_config)
        parts = (cluster.postgres, cluster.balancer, *cluster.nodes)
        try:
            await cluster.database.create()
            await cluster.postgres.start()
            await cluster.database.create_logins()
            await cluster.balancer.start()
            await cluster.set_up_temporal()
            await migrate(cluster.database.url("redrive"))
            yield cluster
        finally:
            for part in reversed(parts):
                await part.stop()


def _describe(folder: Path, network: Network, programs: ServerPrograms) -> Cluster:
    logs = folder / "logs"
    logs.mkdir()
    port = reserve("the cluster's PostgreSQL", asked=None, preferred=25432).number
    balancer_port = reserve("the cluster's balancer", asked=None, preferred=27233).number
    database = place_database(folder, network, port)
    listen = f"{network.host}:{balancer_port}"
    nodes = [f"{address}:{FRONTEND_PORT}" for address in network.nodes]
    balancer = Program(
        name="balancer",
        title="the balancer",
        command=[sys.executable, "-m", "tests.cluster.balancer", listen, *nodes],
        environment={**os.environ, "PYTHONPATH": str(ROOT)},
        directory=ROOT,
        ready=partial(answers, network.host, balancer_port),
    )
    return Cluster(
        folder=folder,
        network=network,
        database=database,
        programs=programs,
        balancer_port=balancer_port,
        postgres=Part(database.program, logs),
        nodes=tuple(Part(_node(node, network, programs, database, folder), logs) for node in range(NODES)),
        balancer=Part(balancer, logs),
    )


def _node(node: int, network: Network, programs: ServerPrograms, database: ClusterDatabase, folder: Path) -> Program:
    return Program(
        name=f"node-{node + 1}",
        title=f"node {node + 1}",
        command=[*network.inside(node), programs.server, "start"],
        environment={
            **_node_environment(network.nodes[node], network, database),
            "DYNAMIC_CONFIG_FILE_PATH": str(folder / _DYNAMIC_CONFIG),
        },
        directory=Path("/"),
        ready=partial(answers, network.nodes[node], FRONTEND_PORT),
        ready_timeout=timedelta(seconds=120),
        grace=timedelta(seconds=20),
    )


def _node_environment(address: str, network: Network, database: ClusterDatabase) -> Mapping[str, str]:
    """Return the variables of the compose file's service `temporal`, with this node's address."""
    return compose_service("temporal").environment | {
        "POSTGRES_SEEDS": network.host,
        "DB_PORT": str(database.port),
        "POSTGRES_PWD": database.passwords["temporal"],
        "BIND_ON_IP": address,
        "LOG_LEVEL": "warn",
    }
