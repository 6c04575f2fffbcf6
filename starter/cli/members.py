"""`redrive members …`: people who sign in through the identity provider."""

from collections.abc import Sequence
from typing import Annotated

from cyclopts import App, Parameter

from redrive.access import Role, parse_role
from redrive.connection import owner_database_url
from redrive.contracts import DEFAULT_TENANT
from redrive.settings import read_settings
from redrive.starter.cli.command_options import By, Rights, RoleName, asked_by
from redrive.starter.cli.records import open_access
from redrive.starter.cli.runs.views import print_first, print_json
from redrive.starter.cli.terminal import Json, Limit, Listing, console, plain
from redrive.store.access import MemberRow, list_members, put_member

app = App(name="members")
Subject = Annotated[str, Parameter(help="The person, as the identity provider names them: an email address, or `sub`.")]


@app.command
async def put(
    subject: Subject,
    /,
    *,
    role: RoleName,
    tenant: str | None = None,
    right: Rights = None,
    inactive: bool = False,
    by: By = None,
    json: Json = False,
) -> None:
    """Give a person a role in a tenant, or change it. It is valid from their next request on.

    **Examples**

    `redrive members put ada@example.org --role admin --tenant acme`

    `redrive members put ada@example.org --role admin --tenant acme --inactive` ends it.

    Parameters
    ----------
    tenant
        The tenant. An owner has none; by default, `default`.
    inactive
        Keep the person's row, but refuse their sign-ins and requests.
    """
    chosen = parse_role(role)
    row = await put_member(
        owner_database_url(read_settings()),
        subject,
        tenant=tenant or (None if chosen is Role.OWNER else DEFAULT_TENANT),
        role=chosen,
        changed_by=asked_by(by),
        active=not inactive,
        rights=frozenset(right) if right else None,
    )
    if json:
        print_json(row)
    else:
        state = "active" if row.active else "not active"
        console.print(f"{row.subject} is {row.role} in {row.tenant}, {state}", markup=False, soft_wrap=True)


@app.command(name="list")
async def list_all(*, tenant: str | None = None, limit: Limit = 1000, json: Json = False) -> None:
    """List members, including inactive ones.

    **Example**

    `redrive members list --tenant acme`

    Parameters
    ----------
    tenant
        Only those of this tenant.
    """
    async with open_access(read_settings()) as pool:
        rows = await list_members(pool, tenant, limit + 1)
    print_first(rows, _table, limit=limit, none="no members", json=json)


def _table(rows: Sequence[MemberRow]) -> Listing:
    table = Listing("subject", "role", "tenant", "rights", "active")
    for row in rows:
        table.add_row(
            plain(row.subject), row.role.value, row.tenant, " ".join(row.rights), "yes" if row.active else "no"
        )
    return table
