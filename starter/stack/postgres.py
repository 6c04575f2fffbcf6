"""The embedded PostgreSQL: a real server on the loopback address, with a password and persistent data."""

import secrets
import signal
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import asyncpg

from redrive.errors import StackError, Unavailable
from redrive.postgres.connection import DRIVER_ERRORS, connect
from redrive.postgres.pool import ACCESS_ROLE, APP_ROLE
from redrive.starter.stack.child import Program
from redrive.starter.stack.placement import Placement
from redrive.starter.stack.ports import LOOPBACK
from redrive.starter.stack.postgres_data import check_version, create_data, end_leftover
from redrive.starter.stack.state import StateDirectory, write_private, writing

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
class Passwords:
    """The password of each login: the superuser, who owns the tables, the application, and its access role."""

    owner: str
    app: str
    access: str


@dataclass(frozen=True)
class Postgres:
    """Where the server listens and keeps its data, and its passwords."""

    placement: Placement
    port: int
    passwords: Passwords

    @property
    def url(self) -> str:
        """The address of our database for the application, which owns nothing, with the password."""
        return self._url(APP_ROLE, self.passwords.app, _DATABASE)

    @property
    def access_url(self) -> str:
        """The address for sessions and tokens."""
        return self._url(ACCESS_ROLE, self.passwords.access, _DATABASE)

    @property
    def owner_url(self) -> str:
        """The address for migrations."""
        return self._url(_USER, self.passwords.owner, _DATABASE)

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
            # The server's fastest shutdown: it ends its own children, and recovers from its log next time.
            death_signal=signal.SIGQUIT,
            grace=timedelta(seconds=20),
        )

    @property
    def command(self) -> list[str]:
        """The command line that starts it."""
        options = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
        return [self.placement.program("postgres"), "-D", str(self.placement.data), "-p", str(self.port), *options]

    async def prepare(self) -> None:
        """Create the data directory at the first start; later, end a server that was left behind in it."""
        with writing(self.placement.data):
            if self.placement.data.exists():
                await end_leftover(self.placement.data)
                check_version(self.placement)
            else:
                await create_data(self.placement, user=_USER, password=self.passwords.owner)

    async def is_ready(self) -> bool:
        """Connect, and create our database and logins if they are missing."""
        try:
            connection = await connect(self._url(_USER, self.passwords.owner, "postgres"))
        except Unavailable:
            return False
        try:
            if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", _DATABASE):
                await connection.execute(f"CREATE DATABASE {_DATABASE}")
            # At every start: an earlier version's data lacks them.
            await _keep_login(connection, APP_ROLE, self.passwords.app)
            await _keep_login(connection, ACCESS_ROLE, self.passwords.access)
            await connection.close()
        except DRIVER_ERRORS:
            connection.terminate()
            return False
        return True

    def _url(self, user: str, password: str, database: str) -> str:
        return f"postgresql://{user}:{password}@{LOOPBACK}:{self.port}/{database}"


async def _keep_login(connection: "asyncpg.Connection[asyncpg.Record]", role: str, password: str) -> None:
    known = await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", role)
    statement = await connection.fetchval(
        "SELECT format($1 || ' ROLE %I LOGIN PASSWORD %L', $2::text, $3::text)",
        "ALTER" if known else "CREATE",
        role,
        password,
    )
    await connection.execute(statement)


def keep_passwords(state: StateDirectory, data: Path) -> Passwords:
    """Read the passwords of all logins, creating missing ones."""
    return Passwords(
        owner=keep_password(state, data),
        app=_kept(state.path / f"postgres.{APP_ROLE}.password"),
        access=_kept(state.path / f"postgres.{ACCESS_ROLE}.password"),
    )


def _kept(file: Path) -> str:
    if not file.exists():
        write_private(file, _new_password())
    with writing(file):
        return file.read_text(encoding="utf-8").strip()


def _new_password() -> str:
    return secrets.token_urlsafe(24) + "\n"


def keep_password(state: StateDirectory, data: Path) -> str:
    """Read the password of the data's superuser; create one if there is no data yet."""
    file = state.path / "postgres.password"
    if not data.exists():
        write_private(file, _new_password())
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise StackError(
            f"the password of the data in {data} cannot be read from {file} ({error.strerror}): "
            "put it back, or start over with --fresh"
        ) from error
