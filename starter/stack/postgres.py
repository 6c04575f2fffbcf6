"""The embedded PostgreSQL: a real server on the loopback address, with a password, its data kept."""

import secrets
import signal
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import asyncpg

from redrive.errors import StackError, Unavailable
from starter.stack.child import Program
from starter.stack.placement import Placement
from starter.stack.ports import LOOPBACK
from starter.stack.postgres_data import check_version, create_data, end_leftover
from starter.stack.state import StateDirectory, write_private, writing
from store.connection import connect

POSTGRES_PORT: Final = 15432
_USER: Final = "redrive"
_DATABASE: Final = "redrive"
_SETTINGS: Final = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


@dataclass(frozen=True)
class Postgres:
    """Where the server listens and keeps its data, and its password."""

    placement: Placement
    port: int
    password: str

    @property
    def url(self) -> str:
        """The address of our database, with the password."""
        return self._url(_DATABASE)

    @property
    def program(self) -> Program:
        """The server as a child."""
        return Program(
            name="postgres",
            title="PostgreSQL",
            command=self.command,
            ready=self.is_ready,
            prepare=self.prepare,
            directory=Path("/"),
            account=self.placement.account,
            stop_signal=signal.SIGINT,
            # The server's quickest way out: it takes its own children along, and recovers from its log next time.
            death_signal=signal.SIGQUIT,
            grace=timedelta(seconds=20),
        )

    @property
    def command(self) -> list[str]:
        """The command line that starts it."""
        options = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
        return [self.placement.program("postgres"), "-D", str(self.placement.data), "-p", str(self.port), *options]

    async def prepare(self) -> None:
        """Make the data directory at the first start; later, end a server that was left behind in it."""
        with writing(self.placement.data):
            if self.placement.data.exists():
                await end_leftover(self.placement.data)
                check_version(self.placement)
            else:
                await create_data(self.placement, user=_USER, password=self.password)

    async def is_ready(self) -> bool:
        """Connect, and make our database when it is not there yet."""
        try:
            connection = await connect(self._url("postgres"))
        except Unavailable:
            return False
        try:
            if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", _DATABASE):
                await connection.execute(f"CREATE DATABASE {_DATABASE}")
            await connection.close()
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            connection.terminate()
            return False
        return True

    def _url(self, database: str) -> str:
        return f"postgresql://{_USER}:{self.password}@{LOOPBACK}:{self.port}/{database}"


def keep_password(state: StateDirectory, data: Path) -> str:
    """Read the password of the data's superuser; make one when there is no data yet."""
    file = state.path / "postgres.password"
    if not data.exists():
        write_private(file, secrets.token_urlsafe(24) + "\n")
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise StackError(
            f"the password of the data in {data} cannot be read from {file} ({error.strerror}): "
            "put it back, or start over with --fresh"
        ) from error
