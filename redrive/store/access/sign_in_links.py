"""Links that sign a browser in once. Of a secret, the hash is stored."""

from datetime import timedelta
from typing import Final

from redrive.postgres.tenancy import Pool
from redrive.store.access.tokens import hashed, new_secret

LINK_LASTS: Final = timedelta(hours=1)


async def open_link_session(pool: Pool, link: str, lasts: timedelta) -> str | None:
    """Sign a browser in with a one-time link, which this uses up. None: it was used, or has expired."""
    secret = new_secret("")
    done = await pool.fetchval("SELECT open_link_session($1, $2, $3)", hashed(link), hashed(secret), lasts)
    return secret if done else None


async def create_link(pool: Pool, token: str) -> str | None:
    """Create a link that signs a browser in once, as the holder of this token. None: the token is not valid."""
    secret = new_secret("")
    done = await pool.fetchval("SELECT put_link($1, $2, $3)", hashed(token), hashed(secret), LINK_LASTS)
    return secret if done else None
