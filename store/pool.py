"""The pool of connections that the application works through, as a role that owns nothing."""

from datetime import timedelta
from typing import Final

import asyncpg

from redrive.errors import Unavailable
from store.connection import CONNECT_ERRORS, CONNECT_TIMEOUT, unavailable

APP_ROLE: Final = "redrive_app"
SCHEMA: Final = "redrive"
COMMAND_TIMEOUT: Final = timedelta(seconds=30)


async def _leave(_: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Leave a session as it is; the driver itself has rolled back a transaction that was left open."""


async def open_pool(database_url: str, *, max_size: int = 10, tidy: bool = True) -> "asyncpg.Pool[asyncpg.Record]":
    """Open a pool whose connections act as `redrive_app` in the schema `redrive`, or raise `Unavailable`.

    A `tidy` pool resets a session before the next one gets it: a round trip that users who leave nothing behind in a
    session (no settings, locks or cursors beyond their transaction) can save.
    """
    try:
        return await asyncpg.create_pool(
            database_url,
            min_size=1,
            max_size=max_size,
            timeout=CONNECT_TIMEOUT.total_seconds(),
            command_timeout=COMMAND_TIMEOUT.total_seconds(),
            reset=None if tidy else _leave,
            # As connection settings, not as statements: the pool resets a connection to these when it comes back,
            # and RESET ROLE leads here and not to the owner.
            server_settings={"role": APP_ROLE, "search_path": f"{SCHEMA}, pg_temp", "application_name": "redrive"},
        )
    except asyncpg.InvalidParameterValueError as error:
        raise Unavailable(f"the database has no Redrive schema yet, apply the migrations first: {error}") from None
    except CONNECT_ERRORS as error:
        raise unavailable(database_url, error) from None
