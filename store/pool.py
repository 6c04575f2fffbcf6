"""Connections that the application works through, as a role that owns nothing: in a pool, or one alone."""

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import asyncpg

from redrive.errors import Unavailable
from store.connection import CONNECT_ERRORS, CONNECT_TIMEOUT, unavailable
from store.tenancy import Pool, Session

APP_ROLE: Final = "redrive_app"
SCHEMA: Final = "redrive"
COMMAND_TIMEOUT: Final = timedelta(seconds=30)
# On a connection outside the pool: a statement whose asker has gone ends by itself.
STATEMENT_TIMEOUT: Final = timedelta(seconds=5)
# As connection settings, not as statements: a pool resets a connection to these when it comes back, and RESET ROLE
# leads here and not to the owner.
_SETTINGS: Final = {"role": APP_ROLE, "search_path": f"{SCHEMA}, pg_temp", "application_name": "redrive"}


async def open_pool(database_url: str, *, max_size: int = 10) -> Pool:
    """Open a pool whose connections act as `redrive_app` in the schema `redrive`, or raise `Unavailable`."""
    with _refusals(database_url):
        return await asyncpg.create_pool(
            database_url,
            min_size=1,
            max_size=max_size,
            timeout=CONNECT_TIMEOUT.total_seconds(),
            command_timeout=COMMAND_TIMEOUT.total_seconds(),
            server_settings=_SETTINGS,
        )


async def open_session(database_url: str) -> Session:
    """Open one connection like those of a pool, for short statements, or raise `Unavailable`."""
    limit = {"statement_timeout": f"{STATEMENT_TIMEOUT.total_seconds():g}s"}
    with _refusals(database_url):
        return await asyncpg.connect(
            database_url, timeout=CONNECT_TIMEOUT.total_seconds(), server_settings=_SETTINGS | limit
        )


@contextlib.contextmanager
def _refusals(database_url: str) -> Iterator[None]:
    try:
        yield
    except asyncpg.InvalidParameterValueError as error:
        raise Unavailable(f"the database has no Redrive schema yet, apply the migrations first: {error}") from None
    except CONNECT_ERRORS as error:
        raise unavailable(database_url, error) from None
