"""The first sign-in: `redrive up` creates an owner's token, kept with the stack's other secrets, and a link with it."""

from datetime import timedelta
from pathlib import Path
from typing import Final, NamedTuple

from redrive.access import Role
from redrive.errors import InvalidInput
from redrive.postgres.database import ACCESS_ROLE, Database
from redrive.starter.cli.command_options import own_person
from redrive.starter.stack.state import write_private
from redrive.store.access import TokenRequest, create_link, create_owner_token, token_principal

_LASTS: Final = timedelta(days=365)


class Logins(NamedTuple):
    """The database address of the access login, and of the login that owns the tables."""

    access_url: str
    owner_url: str


async def sign_in_link(console: str, logins: Logins, token_file: Path) -> str:
    """Return a link that signs a browser in once, as the holder of the token in this file, created if missing."""
    async with Database(logins.access_url, max_size=1, role=ACCESS_ROLE) as database:
        pool = await database.pool()
        secret = _read(token_file)
        if secret is None or await token_principal(pool, secret) is None:
            wanted = TokenRequest(
                name="redrive up",
                role=Role.OWNER,
                tenant=None,
                created_by="redrive up",
                person=own_person(),
                lasts=_LASTS,
            )
            secret = (await create_owner_token(logins.owner_url, wanted)).secret
            write_private(token_file, secret + "\n")
        return link_address(console, await create_link(pool, secret))


def link_address(console: str, link: str | None) -> str:
    """Return a sign-in link as it is typed into a browser."""
    if link is None:
        raise InvalidInput("the token opens nothing: it expired or was revoked")
    return f"{console.rstrip('/')}/sign-in/link/{link}"


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
