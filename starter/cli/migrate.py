"""`redrive migrate`: bring the database's schema up to date."""

from redrive.connection import owner_database_url, stack_directory
from redrive.errors import InvalidInput
from redrive.settings import Settings, read_settings
from redrive.starter.cli.runs.views import print_json
from redrive.starter.cli.terminal import Json, console
from redrive.starter.stack.state import find_running
from redrive.store.migrate import migrate as apply_migrations


async def migrate(*, json: Json = False) -> None:
    """Bring the database's schema up to date. Safe to call at any time, from several places at once.

    The database is that of REDRIVE_OWNER_DATABASE_URL, whose login owns the tables; without it, that of DATABASE_URL,
    or of the stack that `redrive up` runs in this directory (which does this itself at its start).

    **Example**

    `REDRIVE_OWNER_DATABASE_URL=postgresql://redrive@db.internal/redrive redrive migrate`
    """
    applied = await apply_migrations(_database_url(read_settings()))
    if json:
        print_json({"applied": applied})
    else:
        console.print(f"applied {', '.join(applied)}" if applied else "the schema is up to date")


def _database_url(settings: Settings) -> str:
    if not (settings.owner_database_url or settings.database_url or find_running(stack_directory(settings))):
        raise InvalidInput(
            "REDRIVE_OWNER_DATABASE_URL, DATABASE_URL: not set, and no stack runs in this directory; "
            "say which database it is"
        )
    return owner_database_url(settings)
