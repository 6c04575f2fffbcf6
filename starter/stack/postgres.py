"""The embedded PostgreSQL: a real server on the loopback address, with a password and persistent data.

Its data directory is created once, kept, and used by one server at a time.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from asyncio.subprocess import PIPE, STDOUT
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import asyncpg

from redrive.errors import StackError, Unavailable
from redrive.postgres.database import ACCESS_ROLE, APP_ROLE, DRIVER_ERRORS, connect
from redrive.starter.stack.children import Program
from redrive.starter.stack.leash import leashed
from redrive.starter.stack.placement import Placement
from redrive.starter.stack.ports import LOOPBACK
from redrive.starter.stack.state import StateDirectory, write_private, writing

_ENDINGS: Final = ((signal.SIGINT, 10.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))
POSTGRES_PORT: Final = 15432
_USER: Final = "redrive"
_DATABASE: Final = "redrive"
SETTINGS: Final = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


async def create_data(placement: Placement, *, user: str, password: str) -> None:
    """Create the data directory, with one superuser who needs a password."""
    # Under another name until it is complete: a kill half way must not leave a directory that looks like data.
    draft = placement.data.with_name("postgres.new")
    if draft.exists():
        shutil.rmtree(draft)
    draft.mkdir(mode=0o700, parents=True)
    if placement.account:
        os.chown(draft, placement.account.uid, placement.account.gid)
    await _initdb(placement, draft, user, password)
    draft.rename(placement.data)


def check_version(placement: Placement) -> None:
    """Refuse data of another major version, which the server could not read."""
    made_by = (placement.data / "PG_VERSION").read_text(encoding="utf-8").strip()
    answer = subprocess.run([placement.program("postgres"), "--version"], capture_output=True, text=True, check=True)
    ours = answer.stdout.split()[2].split(".")[0]
    if made_by != ours:
        raise StackError(
            f"the data in {placement.data} was made by PostgreSQL {made_by} and this is {ours}: "
            "move it with pg_dump, or start over with --fresh"
        )


async def end_leftover(data: Path) -> None:
    """End a server that a killed stack left behind in the data directory. The caller holds the stack's lock."""
    pid = _recorded_pid(data)
    if pid is None or not _alive(pid):
        return
    if not _serves(pid, data):
        # Another process has this number by now, and the server would refuse to start because of it.
        (data / "postmaster.pid").unlink(missing_ok=True)
        return
    for ending, timeout in _ENDINGS:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, ending)
        if await _gone(pid, timeout):
            return
    raise StackError(f"a PostgreSQL that was left behind (process {pid}) does not end: end it and try again")


async def _initdb(placement: Placement, data: Path, user: str, password: str) -> None:
    account = placement.account
    owner = (account.uid, account.gid) if account else None
    command = [
        *(placement.program("initdb"), "--pgdata", str(data), "--username", user, "--pwfile", "/dev/stdin"),
        *("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C"),
    ]
    secret = _pipe(password, owner)
    try:
        process = await asyncio.create_subprocess_exec(
            *leashed(command, uid_gid=owner, death_signal=signal.SIGKILL),
            stdin=secret,
            stdout=PIPE,
            stderr=STDOUT,
            cwd="/",
            start_new_session=True,
        )
    finally:
        os.close(secret)
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        lines = output.decode(errors="replace").strip().splitlines()[-6:]
        raise StackError(f"PostgreSQL cannot make its data in {data}:\n" + "\n".join(f"  {line}" for line in lines))


def _pipe(text: str, owner: tuple[int, int] | None) -> int:
    """Return the reading end of a pipe that holds a text: no file and no command line ever shows it."""
    reading, writing = os.pipe()
    if owner:
        os.fchown(reading, *owner)
    os.write(writing, text.encode() + b"\n")
    os.close(writing)
    return reading


def _recorded_pid(data: Path) -> int | None:
    try:
        return int((data / "postmaster.pid").read_text(encoding="utf-8").splitlines()[0])
    except (FileNotFoundError, ValueError, IndexError):
        return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _serves(pid: int, data: Path) -> bool:
    """Tell whether a process is a PostgreSQL server of this data directory."""
    words = _command_line(pid)
    return "postgres" in words and str(data) in words


def _command_line(pid: int) -> str:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    if Path("/proc/self").exists():
        return ""
    command = ["ps", "-p", str(pid), "-o", "command="]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout


async def _gone(pid: int, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while _alive(pid):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


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
        options = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
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
