"""`redrive migrate`: bring the database's schema up to date."""

from redrive.errors import InvalidInput
from redrive.settings import Settings
from starter.terminal import console
from store.migrate import migrate as apply_migrations


async def migrate() -> None:
    """Bring the schema of DATABASE_URL up to date. Safe to call at any time, from several places at once."""
    url = Settings().database_url
    if url is None:
        raise InvalidInput("DATABASE_URL: not set; say which database to bring up to date")
    applied = await apply_migrations(url.get_secret_value())
    console.print(f"applied {', '.join(applied)}" if applied else "the schema is up to date")
