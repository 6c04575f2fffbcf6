"""The cluster's PostgreSQL: the logins that `deploy/postgres/roles.sh` makes, an archive of its log, and restores."""

import secrets
import shutil
import signal
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from redrive.errors import Unavailable
from redrive.postgres.database import DRIVER_ERRORS, connect
from redrive.starter.stack.children import Program
from redrive.starter.stack.placement import Placement, find_postgres, hand_over, place, server_account
from redrive.starter.stack.postgres import create_data
from redrive.starter.stack.state import StateDirectory
from tests.cluster.network import Network
from tests.cluster.part import run_script
from tests.cluster.server_build import ROOT

SUPERUSER = "postgres"
# Each of the four services of a node may open 30 connections: 240 for two nodes. The rest is for Redrive.
_MAX_CONNECTIONS = 400
_ROLES = {
    "temporal": "TEMPORAL",
    "redrive": "REDRIVE",
    "redrive_app": "REDRIVE_APP",
    "redrive_console": "REDRIVE_CONSOLE",
}


@dataclass(frozen=True)
class ClusterDatabase:
    """Where the server listens and keeps its data; `folder` also holds its archive and backups."""

    placement: Placement
    network: Network
    port: int
    folder: Path
    passwords: dict[str, str] = field(
        default_factory=lambda: {name: secrets.token_hex(16) for name in (SUPERUSER, *_ROLES)}
    )

    @property
    def program(self) -> Program:
        """The server as a child."""
        return Program(
            name="postgres",
            title="PostgreSQL",
            command=self._command,
            ready=self._is_ready,
            directory=Path("/"),
            account=self.placement.account,
            stop_signal=signal.SIGINT,
            death_signal=signal.SIGQUIT,
            grace=timedelta(seconds=30),
        )

    async def _is_ready(self) -> bool:
        """Tell whether it takes writes: while it reads its log up to a mark, it does not."""
        try:
            connection = await connect(self.url(SUPERUSER, "postgres"))
        except Unavailable:
            return False
        try:
            return bool(await connection.fetchval("SELECT NOT pg_is_in_recovery()"))
        except DRIVER_ERRORS:
            return False
        finally:
            connection.terminate()

    @property
    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": self.network.host,
            "unix_socket_directories": "",
            "timezone": "UTC",
            "max_connections": str(_MAX_CONNECTIONS),
            "archive_mode": "on",
            "archive_command": f"test ! -f {self.archive}/%f && cp %p {self.archive}/%f",
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [self.placement.program("postgres"), "-D", str(self.placement.data), "-p", str(self.port), *words]

    @property
    def archive(self) -> Path:
        """Where finished segments of the log go."""
        return self.folder / "archive"

    def url(self, login: str, database: str = "redrive") -> str:
        """Return the address of a database for a login."""
        return f"postgresql://{login}:{self.passwords[login]}@{self.network.host}:{self.port}/{database}"

    def environment(self, login: str = SUPERUSER) -> dict[str, str]:
        """Return the variables that PostgreSQL's own programs read."""
        return {
            "PGHOST": self.network.host,
            "PGPORT": str(self.port),
            "PGUSER": login,
            "PGPASSWORD": self.passwords[login],
            "PATH": f"{self.placement.programs / 'bin'}:/usr/bin:/bin",
        }

    async def create(self) -> None:
        """Create its data, and let in those who are on the cluster's network."""
        await create_data(self.placement, user=SUPERUSER, password=self.passwords[SUPERUSER])
        with (self.placement.data / "pg_hba.conf").open("a", encoding="utf-8") as rules:
            rules.writelines(
                f"host {what} all {self.network.allowed} scram-sha-256\n" for what in ("all", "replication")
            )
        for folder in (self.archive, self.folder / "base"):
            hand_over(folder, self.placement.account)

    async def create_logins(self) -> None:
        """Run the compose file's script."""
        passwords = {f"{prefix}_DB_PASSWORD": self.passwords[name] for name, prefix in _ROLES.items()}
        await run_script(
            "/bin/sh", str(ROOT / "deploy" / "postgres" / "roles.sh"), environment=self.environment() | passwords
        )

    async def program_run(self, name: str, *words: str) -> str:
        """Run one of PostgreSQL's programs as the superuser, under the server's account."""
        account = self.placement.account
        return await run_script(
            self.placement.program(name),
            *words,
            environment=self.environment(),
            account=(account.uid, account.gid) if account else None,
        )

    async def sql(self, statement: str, database: str = "postgres") -> str:
        """Run statements as the superuser and return what they print."""
        answer = await self.program_run(
            "psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", database, "-c", statement
        )
        return answer.strip()

    async def back_up(self) -> None:
        """Copy the whole server while it runs."""
        await self.program_run("pg_basebackup", "-D", str(self.folder / "base"), "-c", "fast", "-X", "none")

    async def mark(self, name: str) -> None:
        """Name this moment, and archive the log up to it."""
        await self.sql(f"SELECT pg_create_restore_point('{name}')")
        segment = await self.sql("SELECT pg_walfile_name(pg_switch_wal())")
        while not (self.archive / segment).exists():
            await self.sql("SELECT pg_sleep(0.2)")

    def restore(self, mark: str) -> None:
        """Put the backup in the place of the stopped server's data; the next start reads the log up to the mark."""
        shutil.rmtree(self.placement.data)
        shutil.copytree(self.folder / "base", self.placement.data)
        with (self.placement.data / "postgresql.auto.conf").open("a", encoding="utf-8") as settings:
            settings.write(f"restore_command = 'cp {self.archive}/%f %p'\n")
            settings.write(f"recovery_target_name = '{mark}'\nrecovery_target_action = 'promote'\n")
        (self.placement.data / "recovery.signal").touch()
        if self.placement.account:
            shutil.chown(self.placement.data, self.placement.account.uid, self.placement.account.gid)
            for path in self.placement.data.rglob("*"):
                shutil.chown(path, self.placement.account.uid, self.placement.account.gid)
        self.placement.data.chmod(0o700)


def place_database(folder: Path, network: Network, port: int) -> ClusterDatabase:
    """Decide where the server's files are."""
    placement = place(StateDirectory(folder), find_postgres(), server_account())
    return ClusterDatabase(placement, network, port, placement.data.parent)
