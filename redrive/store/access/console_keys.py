"""The key that all consoles of a deployment sign with. The migration creates it, so that nobody has to set one."""

from redrive.postgres.tenancy import Pool


async def signing_key(pool: Pool) -> bytes:
    """Return the key."""
    key: bytes = await pool.fetchval("SELECT secret FROM redrive.console_keys WHERE name = 'signing'")
    return key
