"""One connection to Postgres, and the only place where a driver's refusal to connect becomes our message.

A database address holds a password: no message made here may quote the address or a parser's complaint about it.
"""

from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

import asyncpg

from redrive.errors import Unavailable

CONNECT_TIMEOUT: Final = timedelta(seconds=10)
# What the driver raises while the database is unavailable, also during a statement. A timeout is an OSError.
DRIVER_ERRORS: Final = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
CONNECT_ERRORS: Final = (*DRIVER_ERRORS, ValueError)


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
