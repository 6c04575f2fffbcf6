"""Members: people whom the identity provider authenticates, each with one tenant and role, active or not."""

from datetime import datetime

from redrive.access import EVERY_TENANT, Principal, Right, Role, granted
from redrive.errors import InvalidInput
from redrive.postgres.records import Record
from redrive.postgres.tenancy import Pool, reading
from redrive.postgres.text import clean
from redrive.store.access.tokens import as_owner, principal

_PUT = """
    INSERT INTO redrive.members (subject, tenant, role, rights, active, changed_by) VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (subject) DO UPDATE SET tenant = excluded.tenant, role = excluded.role, rights = excluded.rights,
        active = excluded.active, changed_by = excluded.changed_by, changed_at = now()
    RETURNING *
"""


class MemberRow(Record):
    """A member in a list. `tenant` is '*' for an owner."""

    subject: str
    tenant: str
    role: Role
    rights: list[Right]
    active: bool
    changed_by: str
    changed_at: datetime


async def put_member(
    database_url: str,
    subject: str,
    *,
    tenant: str | None,
    role: Role,
    changed_by: str,
    active: bool = True,
    rights: frozenset[Right] | None = None,
) -> MemberRow:
    """Give a person a tenant and role, as the owner of the tables: a person may move from another tenant."""
    if (role is Role.OWNER) != (tenant is None):
        raise InvalidInput(f"role {role.value!r}: an owner has no tenant, everybody else has one")
    if not 1 <= len(subject) <= 255:
        raise InvalidInput(f"subject: {len(subject)} characters; it has 1 to 255")
    given = sorted(granted(role, rights))
    async with as_owner(database_url) as connection:
        row = await connection.fetchrow(
            _PUT, clean(subject), tenant or EVERY_TENANT, role.value, given, active, clean(changed_by)
        )
    if row is None:
        raise LookupError(f"member {subject!r} was not written")
    return MemberRow.model_validate(dict(row))


async def list_members(pool: Pool, tenant: str | None, limit: int = 1000) -> list[MemberRow]:
    """Return the members of a tenant, or of all."""
    async with reading(pool, tenant) as connection:
        rows = await connection.fetch("SELECT * FROM members ORDER BY tenant, subject LIMIT $1", limit)
    return [MemberRow.model_validate(dict(row)) for row in rows]


async def member_principal(pool: Pool, subject: str) -> Principal | None:
    """Return the principal of a person whom the identity provider authenticated; None without an active member."""
    row = await pool.fetchrow("SELECT * FROM active_member($1)", clean(subject))
    return principal(row, is_token=False) if row else None
