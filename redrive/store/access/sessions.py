"""Sessions of browsers, and the consoles' signing key. Of a secret, the hash is stored."""

from datetime import timedelta

from redrive.access import Principal
from redrive.postgres.tenancy import Pool
from redrive.postgres.text import clean
from redrive.store.access.tokens import hashed, new_secret, principal


async def open_token_session(pool: Pool, token: str, lasts: timedelta) -> str | None:
    """Sign a browser in with an API token, and return the session's secret. None: the token is not valid."""
    secret = new_secret("")
    done = await pool.fetchval("SELECT open_token_session($1, $2, $3)", hashed(token), hashed(secret), lasts)
    return secret if done else None


async def open_member_session(pool: Pool, subject: str, lasts: timedelta) -> str | None:
    """Sign a browser in as a member whom the identity provider authenticated. None: no active member."""
    secret = new_secret("")
    done = await pool.fetchval("SELECT open_member_session($1, $2, $3)", clean(subject), hashed(secret), lasts)
    return secret if done else None


async def session_principal(pool: Pool, secret: str) -> Principal | None:
    """Return the principal of a session, while it lasts and its token or member is valid."""
    row = await pool.fetchrow("SELECT * FROM session_by_hash($1)", hashed(secret))
    return principal(row, is_token=row["is_token"]) if row else None


async def close_session(pool: Pool, secret: str) -> None:
    """Sign a browser out."""
    await pool.execute("SELECT close_session($1)", hashed(secret))


async def signing_key(pool: Pool) -> bytes:
    """Return the key that all consoles of a deployment sign with. The migration creates it: nobody has to set one."""
    key: bytes = await pool.fetchval("SELECT secret FROM redrive.console_keys WHERE name = 'signing'")
    return key
