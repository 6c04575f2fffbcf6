"""The application's connections, with a role that owns nothing: a pool, or a single one.

`SET ROLE NONE` leads from the role back to the login: the role does not restrict a login that can do more.
"""

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import asyncpg

from redrive.errors import Unavailable
from redrive.logs import get_logger
from redrive.postgres.connection import CONNECT_ERRORS, CONNECT_TIMEOUT, unavailable
from redrive.postgres.tenancy import Pool, Session

log = get_logger(__name__)

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


async def open_pool(database_url: str, *, max_size: int = 10, role: str = APP_ROLE) -> Pool:
    """Open a pool whose connections use a role in the schema `redrive`, or raise `Unavailable`.

    A login that can do more than the role works, with a warning.
    """
    with _refusals(database_url, role):
        pool: Pool = await asyncpg.create_pool(
            database_url,
            min_size=1,
            max_size=max_size,
            timeout=CONNECT_TIMEOUT.total_seconds(),
            command_timeout=COMMAND_TIMEOUT.total_seconds(),
            server_settings=_settings(role),
        )
        try:
            await _warn_of_power(pool)
        except BaseException:
            pool.terminate()
            raise
        return pool


async def open_session(database_url: str) -> Session:
    """Open one connection like those of a pool, for short statements, or raise `Unavailable`."""
    limit = {"statement_timeout": f"{STATEMENT_TIMEOUT.total_seconds():g}s"}
    with _refusals(database_url, APP_ROLE):
        return await asyncpg.connect(
            database_url, timeout=CONNECT_TIMEOUT.total_seconds(), server_settings=_settings(APP_ROLE) | limit
        )


def _settings(role: str) -> dict[str, str]:
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
def _refusals(database_url: str, role: str) -> Iterator[None]:
    try:
        yield
    except asyncpg.InsufficientPrivilegeError as error:
        variable = "REDRIVE_ACCESS_DATABASE_URL" if role == ACCESS_ROLE else "DATABASE_URL"
        raise Unavailable(f"set {variable} to a login that may work as {role!r}: {error}") from None
    except asyncpg.InvalidParameterValueError as error:
        raise Unavailable(f"the database has no Redrive schema yet, apply the migrations first: {error}") from None
    except CONNECT_ERRORS as error:
        raise unavailable(database_url, error) from None
