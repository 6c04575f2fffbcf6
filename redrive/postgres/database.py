"""The database of a process: connected on first use, so that only its users wait for it.

From single connections up: the pool, the deadline pool for callers that cannot wait, `Database` with both, and the
circuit breaker. Connections use a role that owns nothing; `SET ROLE NONE` leads from it back to the login, and the role
does not restrict a login that can do more. A driver's refusal to connect becomes our message only here. A database
address holds a password: no message made here may quote the address or a parser's complaint about it.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Final, TypeVar
from urllib.parse import urlsplit

import asyncpg

from redrive.errors import Unavailable
from redrive.logs import get_logger
from redrive.postgres.tenancy import Pool, Session

CONNECT_TIMEOUT: Final = timedelta(seconds=10)
# What the driver raises while the database is unavailable, also during a statement. A timeout is an OSError.
DRIVER_ERRORS: Final = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
CONNECT_ERRORS: Final = (*DRIVER_ERRORS, ValueError)
APP_ROLE: Final = "redrive_app"
# The access role: it opens sessions and creates tokens, and sees nothing else.
ACCESS_ROLE: Final = "redrive_console"
SCHEMA: Final = "redrive"
COMMAND_TIMEOUT: Final = timedelta(seconds=30)
# On a connection outside the pool: an abandoned statement ends by itself.
STATEMENT_TIMEOUT: Final = timedelta(seconds=5)
_POWERS: Final = """
    SELECT session_user AS login,
        CASE
            WHEN login.rolsuper THEN 'is a superuser'
            WHEN login.rolbypassrls THEN 'is not bound by row level security'
            WHEN EXISTS (
                SELECT FROM pg_class
                WHERE relnamespace = to_regnamespace($1) AND pg_has_role(session_user, relowner, 'MEMBER')
            ) THEN 'owns the tables'
            WHEN EXISTS (
                SELECT FROM pg_roles AS other
                WHERE other.rolname = ANY ($2) AND other.rolname <> current_user
                    AND pg_has_role(session_user, other.oid, 'MEMBER')
            ) THEN 'may work as ' || array_to_string($2, ' and as ')
        END AS power
    FROM pg_roles AS login WHERE login.rolname = session_user
"""
T = TypeVar("T")
# After a burst, all connections but one are closed after this time.
SURPLUS_LIFETIME: Final = timedelta(minutes=5)
_CLOSE_TIMEOUT = 5.0
# Each connection answers a thousand queries a second.
_DEADLINE_POOL_SIZE: Final = 2
# What an unavailable database raises: a pool that cannot be opened, or a statement.
DATABASE_ERRORS: Final = (*DRIVER_ERRORS, Unavailable)
# After a failure, nobody asks for this long; then one caller tries, and the others go without.
PAUSE: Final = timedelta(seconds=5)

log = get_logger(__name__)


async def connect(database_url: str) -> "asyncpg.Connection[asyncpg.Record]":
    """Open one connection as the user that the address names, or raise `Unavailable`."""
    try:
        return await asyncpg.connect(database_url, timeout=CONNECT_TIMEOUT.total_seconds())
    except CONNECT_ERRORS as error:
        raise unavailable(database_url, error) from None


def unavailable(database_url: str, error: Exception) -> Unavailable:
    """Say which database refused the connection and why, without the password."""
    place = _place(database_url)
    if place is None or (isinstance(error, ValueError) and not isinstance(error, asyncpg.PostgresError)):
        return Unavailable(
            "DATABASE_URL is not a valid address: it must read postgresql://user:password@host:port/database, "
            "with special characters in the password percent-encoded"
        )
    return Unavailable(f"the database at {place} cannot be reached: {_reason(error)}")


def database_problem(error: Exception) -> str:
    """Say why a query was not answered, and what to do."""
    if isinstance(error, asyncpg.UndefinedTableError | asyncpg.UndefinedFunctionError):
        return f"the database's schema is not up to date, run `redrive migrate`: {error}"
    if isinstance(error, OSError):
        return f"the database cannot be reached: {error.strerror or type(error).__name__}"
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return f"the database's login lacks the permission: {error}"
    return f"the database did not do it: {error}; try again"


def _place(database_url: str) -> str | None:
    try:
        parts = urlsplit(database_url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    # An @ after the host means that a raw / ? or # cut the password in two: what looks like a host is a part of it.
    if parts.scheme not in {"postgres", "postgresql"} or "@" in parts.path + parts.query + parts.fragment:
        return None
    return f"{host or 'localhost'}:{port or 5432}"


def _reason(error: Exception) -> str:
    if isinstance(error, asyncpg.InvalidPasswordError | asyncpg.InvalidAuthorizationSpecificationError):
        return "it refused the user name or the password"
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_TIMEOUT.total_seconds():g} s"
    if isinstance(error, asyncpg.PostgresError):
        return str(error)
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return type(error).__name__


async def open_pool(database_url: str, *, max_size: int = 10, role: str | None = APP_ROLE) -> Pool:
    """Open a pool whose connections use a role in the schema `redrive`, or raise `Unavailable`.

    A login that can do more than the role works, with a warning. Without a role it is somebody's own database: its
    login decides.
    """
    with _refusals(database_url, role):
        pool: Pool = await asyncpg.create_pool(
            database_url,
            min_size=1,
            max_size=max_size,
            timeout=CONNECT_TIMEOUT.total_seconds(),
            command_timeout=COMMAND_TIMEOUT.total_seconds(),
            server_settings=_settings(role),
            # Nothing that uses it changes the session, and resetting costs a round trip for each use.
            reset=None if role else _leave_as_it_is,
        )
        try:
            if role:
                await _warn_of_power(pool)
        except BaseException:
            pool.terminate()
            raise
        return pool


async def _leave_as_it_is(_: object) -> None:
    pass


async def open_session(database_url: str) -> Session:
    """Open one connection like those of a pool, for short statements, or raise `Unavailable`."""
    limit = {"statement_timeout": f"{STATEMENT_TIMEOUT.total_seconds():g}s"}
    with _refusals(database_url, APP_ROLE):
        return await asyncpg.connect(
            database_url, timeout=CONNECT_TIMEOUT.total_seconds(), server_settings=_settings(APP_ROLE) | limit
        )


def _settings(role: str | None) -> dict[str, str]:
    if role is None:
        return {"application_name": "redrive"}
    # As connection settings, not as statements: a pool resets a returned connection to these, and RESET ROLE
    # leads here and not to the login.
    return {"role": role, "search_path": f"{SCHEMA}, pg_temp", "application_name": "redrive"}


async def _warn_of_power(pool: Pool) -> None:
    row = await pool.fetchrow(_POWERS, SCHEMA, [APP_ROLE, ACCESS_ROLE])
    if row and row["power"]:
        log.warning(
            "database.login_too_strong",
            login=row["login"],
            reason=row["power"],
            advice="give each process a login that may work as its role alone, see docs/deployment.md",
        )


@contextlib.contextmanager
def _refusals(database_url: str, role: str | None) -> Iterator[None]:
    try:
        yield
    except asyncpg.InsufficientPrivilegeError as error:
        if role is None:
            raise unavailable(database_url, error) from None
        variable = "REDRIVE_ACCESS_DATABASE_URL" if role == ACCESS_ROLE else "DATABASE_URL"
        raise Unavailable(f"set {variable} to a login that may work as {role!r}: {error}") from None
    except asyncpg.InvalidParameterValueError as error:
        raise Unavailable(f"the database has no Redrive schema yet, apply the migrations first: {error}") from None
    except CONNECT_ERRORS as error:
        raise unavailable(database_url, error) from None


class DeadlinePool:
    """Up to a fixed number of connections, opened on demand and kept for the next caller."""

    def __init__(self, url: str, max_size: int) -> None:
        self._url = url
        self._room = asyncio.Semaphore(max_size)
        self._idle: list[Session] = []
        self._shrinking: asyncio.TimerHandle | None = None
        self._closed = False

    async def ask(self, question: Callable[[Session], Awaitable[T]], longest: timedelta) -> T:
        """Return the answer; raise `TimeoutError` if there is none in time, and what the driver raises."""
        try:
            async with asyncio.timeout(longest.total_seconds()), self._room:
                return await self._asked(question)
        except TimeoutError:
            raise TimeoutError(f"no answer within {longest.total_seconds():g} s") from None

    async def _asked(self, question: Callable[[Session], Awaitable[T]]) -> T:
        session = await self._take()
        try:
            answer = await question(session)
        except BaseException:
            session.terminate()
            raise
        self._put(session)
        return answer

    async def _take(self) -> Session:
        """Return the most recently used connection, unless the server has closed it, or a new one."""
        while self._idle:
            session = self._idle.pop()
            if not session.is_closed():
                return session
        return await open_session(self._url)

    def _put(self, session: Session) -> None:
        if self._closed:
            session.terminate()
            return
        self._idle.append(session)
        if len(self._idle) > 1 and self._shrinking is None:
            loop = asyncio.get_running_loop()
            self._shrinking = loop.call_later(SURPLUS_LIFETIME.total_seconds(), self._shrink)

    def _shrink(self) -> None:
        self._shrinking = None
        while len(self._idle) > 1:
            self._idle.pop(0).terminate()

    def close(self) -> None:
        """Close all connections; one in use is closed once its answer has arrived."""
        self._closed = True
        if self._shrinking:
            self._shrinking.cancel()
        while self._idle:
            self._idle.pop().terminate()


class Database:
    """Open the pool on first use; if that fails, the next use tries again. `deadline_pool` serves impatient callers."""

    def __init__(self, url: str, *, max_size: int = 10, role: str | None = APP_ROLE) -> None:
        self._url = url
        self._role = role
        self._max_size = max_size
        self.deadline_pool = DeadlinePool(url, _DEADLINE_POOL_SIZE)
        self._pool: Pool | None = None
        self._opening = asyncio.Lock()

    async def pool(self) -> Pool:
        """Return the pool, or raise `Unavailable`."""
        if self._pool is None:
            async with self._opening:
                if self._pool is None:
                    self._pool = await open_pool(self._url, max_size=self._max_size, role=self._role)
        return self._pool

    async def close(self) -> None:
        """Close all connections, terminating those that are still busy after a while."""
        self.deadline_pool.close()
        # Wait for a pool that is being opened: it would stay open.
        async with self._opening:
            pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            await asyncio.wait_for(pool.close(), timeout=_CLOSE_TIMEOUT)
        except TimeoutError:
            pool.terminate()

    async def __aenter__(self) -> "Database":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class CircuitBreaker:
    """Ask a database with a time limit, and after a failure not at all for a while."""

    def __init__(self, deadline_pool: DeadlinePool, longest: timedelta) -> None:
        self._pool = deadline_pool
        self._longest = longest
        self._asked_again_at = 0.0

    async def ask(self, question: Callable[[Session], Awaitable[T]], tell: Callable[[Exception], None]) -> T | None:
        """Return the answer; None if there was none, which is reported to `tell`, or if it was not asked for."""
        now = time.monotonic()
        if now < self._asked_again_at:
            return None
        if self._asked_again_at:
            # This caller tries; the others do not wait for it.
            self._asked_again_at = now + PAUSE.total_seconds()
        try:
            answer = await self._pool.ask(question, self._longest)
        except DATABASE_ERRORS as error:
            self._asked_again_at = time.monotonic() + PAUSE.total_seconds()
            tell(error)
            return None
        self._asked_again_at = 0.0
        return answer
