"""`redrive tokens …`: API tokens for the console and its API."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from cyclopts import App, Parameter

from redrive.access import Role, member, parse_role
from redrive.connection import access_database_url, owner_database_url, stack_directory
from redrive.contracts import DEFAULT_TENANT
from redrive.errors import InvalidInput
from redrive.settings import read_settings
from redrive.starter.cli.command_options import By, Rights, RoleName, asked_by, own_person
from redrive.starter.cli.errors import WrongUsage
from redrive.starter.cli.list_options import parse_duration
from redrive.starter.cli.records import open_access
from redrive.starter.cli.runs.views import print_first, print_json
from redrive.starter.cli.terminal import Json, Limit, Listing, console, errors, plain
from redrive.starter.stack.first_token import Logins, link_address, sign_in_link
from redrive.starter.stack.state import StateDirectory, find_running
from redrive.store.access import (
    NewToken,
    TokenRequest,
    TokenRow,
    create_link,
    create_owner_token,
    create_token,
    list_tokens,
    revoke_owner_token,
)

app = App(name="tokens")


@app.command
async def create(
    *,
    name: str,
    role: RoleName,
    tenant: str | None = None,
    right: Rights = None,
    expires: str = "90d",
    for_: Annotated[str | None, Parameter(name="--for")] = None,
    by: By = None,
    json: Json = False,
) -> None:
    """Create a token and print its secret, only this once: just a hash of it is kept.

    **Examples**

    `redrive tokens create --name laptop --role owner`

    `redrive tokens create --name shop --role admin --tenant acme --right start --right read --expires 30d`

    Parameters
    ----------
    name
        What it is for; the audit log shows it with every command that it gives.
    tenant
        Its tenant. An owner has none; by default, `default`.
    expires
        How long it lasts: `12h`, `30d`; at most 366 days.
    for_
        The person who will have it, as `redrive members` names them. By default, you: whatever is approved with it is
        approved by you.
    """
    wanted = TokenRequest(
        name=name,
        role=parse_role(role),
        tenant=tenant,
        created_by=asked_by(by),
        person=own_person() if for_ is None else member(for_),
        lasts=parse_duration("--expires", expires),
        rights=frozenset(right) if right else None,
    )
    token = await _create(wanted)
    if json:
        print_json(token)
    else:
        # Only the secret goes to stdout, so that `TOKEN=$(redrive tokens create …)` works.
        console.print(token.secret, markup=False, soft_wrap=True)
        errors.print(f"token {token.id} of {token.role} in {token.tenant}, until {token.expires_at:%Y-%m-%d %H:%M} UTC")


async def _create(wanted: TokenRequest) -> NewToken:
    settings = read_settings()
    if wanted.role is Role.OWNER:
        if wanted.tenant or wanted.rights:
            raise WrongUsage("--role owner: has all tenants and all rights; leave --tenant and --right out")
        return await create_owner_token(owner_database_url(settings), wanted)
    async with open_access(settings) as pool:
        return await create_token(pool, replace(wanted, tenant=wanted.tenant or DEFAULT_TENANT))


@app.command(name="list")
async def list_all(*, tenant: str | None = None, limit: Limit = 200, json: Json = False) -> None:
    """List tokens, the newest first, including expired and revoked ones. Their secrets are not kept anywhere.

    **Example**

    `redrive tokens list --tenant acme`

    Parameters
    ----------
    tenant
        Only those of this tenant.
    """
    async with open_access(read_settings()) as pool:
        rows = await list_tokens(pool, tenant, limit + 1)
    print_first(rows, _table, limit=limit, none="no tokens", json=json)


def _table(rows: Sequence[TokenRow]) -> Listing:
    headers = ("id", "name", "role", "tenant", "rights", "expires", "revoked")
    table = Listing(*headers)
    for row in rows:
        revoked = f"{row.revoked_at:%Y-%m-%d %H:%M} by {row.revoked_by}" if row.revoked_at else ""
        facts = (row.role.value, row.tenant, " ".join(row.rights), f"{row.expires_at:%Y-%m-%d %H:%M}")
        table.add_row(row.id, plain(row.name), *facts, plain(revoked))
    return table


@app.command
async def revoke(token: str, /, *, by: By = None, json: Json = False) -> None:
    """Revoke a token by its id (`tok_…`) and all that were created with it: their next requests are refused.

    Their sessions also end. Those that were created with it are printed.

    **Example**

    `redrive tokens revoke tok_5f0c2a9d1be84c37`

    Parameters
    ----------
    token
        The token's id, as `redrive tokens list` prints it, or a beginning of it that no other token has.
    """
    row = await revoke_owner_token(owner_database_url(read_settings()), token, asked_by(by))
    if row is None:
        raise InvalidInput(f"token {token[:60]!r}: there is none that is not revoked; `redrive tokens list` shows them")
    if json:
        print_json(row)
    else:
        console.print(f"revoked {row.id}", markup=False)
        for made in row.also_revoked:
            console.print(f"revoked {made.id} ({plain(made.name)}), made with {made.made_with}", markup=False)


@app.command
async def link(*, token: str | None = None, console_url: str | None = None) -> None:
    """Print a link that signs a browser in once, soon after, as the holder of a token.

    **Examples**

    `redrive tokens link` uses the token that `redrive up` has created in this directory.

    `REDRIVE_TOKEN=rdt_… redrive tokens link --console-url https://redrive.example.org`

    Parameters
    ----------
    token
        The token's secret; by default REDRIVE_TOKEN, or the token of the stack that runs in this directory.
    console_url
        The console's address; by default REDRIVE_CONSOLE_URL, or the console of the stack that runs in this directory.
    """
    settings = read_settings()
    running = find_running(stack_directory(settings))
    place = console_url or settings.console_url or (running.console if running else None)
    if place is None:
        raise WrongUsage("--console-url: say where the console is; no stack with one runs in this directory")
    secret = token or os.environ.get("REDRIVE_TOKEN")
    if secret is None:
        file = StateDirectory(stack_directory(settings)).token
        logins = Logins(access_database_url(settings), owner_database_url(settings))
        console.print(await sign_in_link(place, logins, file), markup=False, soft_wrap=True)
        return
    async with open_access(settings) as pool:
        console.print(link_address(place, await create_link(pool, secret)), markup=False, soft_wrap=True)
