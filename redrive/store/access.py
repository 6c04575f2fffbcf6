"""Access: API tokens, members, browsers' sessions and one-time links. Of every secret, only the hash is stored.

A token's secret is shown once, to its creator. Members are people whom the identity provider authenticates, each with
one tenant and role, active or not.
"""

import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import asyncpg
from pydantic import Field

from redrive.access import EVERY_TENANT, Principal, Right, Role, granted
from redrive.errors import InvalidInput, Unavailable
from redrive.postgres.database import connect
from redrive.postgres.paging import ids_beginning, select
from redrive.postgres.tenancy import Connection, Pool, reading, transaction
from redrive.postgres.values import Record, clean
from redrive.prefixes import SHORTEST_PREFIX, only_one

PREFIX: Final = "rdt_"
_ID_PREFIX: Final = "tok_"
# The prefix of the id of a principal that came with a token.
BY_TOKEN: Final = "token:"  # noqa: S105 - no secret
LONGEST_LIFE: Final = timedelta(days=366)
_COLUMNS: Final = """
    id, tenant, name, role, rights, created_by, made_with, created_at, expires_at, revoked_by, revoked_with, revoked_at
"""
_INSERT: Final = f"""
    INSERT INTO redrive.api_tokens (id, tenant, name, role, rights, hash, created_by, expires_at, person, made_with)
    SELECT $1, $2, $3, $4, $5, $6, $7, now() + $8::interval, $9, $10::text
    WHERE $10 IS NULL OR redrive.hold_token($10) RETURNING {_COLUMNS}
"""
# The token and all that were created with it, directly or not.
_REVOKE: Final = """
    WITH RECURSIVE tree AS (
        SELECT $1::text AS id
        UNION SELECT made.id FROM redrive.api_tokens AS made JOIN tree ON made.made_with = tree.id
    )
    UPDATE redrive.api_tokens AS token
    SET revoked_by = $2, revoked_at = now(), revoked_with = CASE WHEN token.id <> $1 THEN $1 END
    FROM tree WHERE token.id = tree.id AND token.revoked_at IS NULL
    RETURNING token.id, token.tenant, token.name, token.role, token.rights, token.created_by, token.made_with,
        token.created_at, token.expires_at, token.revoked_by, token.revoked_with, token.revoked_at
"""
_ONE: Final = select(_COLUMNS, "redrive.api_tokens", "WHERE id = $1")
_NEWEST: Final = select(_COLUMNS, "redrive.api_tokens", "ORDER BY created_at DESC, id LIMIT $1")
_PUT = """
    INSERT INTO redrive.members (subject, tenant, role, rights, active, changed_by) VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (subject) DO UPDATE SET tenant = excluded.tenant, role = excluded.role, rights = excluded.rights,
        active = excluded.active, changed_by = excluded.changed_by, changed_at = now()
    RETURNING *
"""
LINK_LASTS: Final = timedelta(hours=1)


class TokenRow(Record):
    """A token in a list. `tenant` is '*' for an owner's."""

    id: str
    tenant: str
    name: str
    role: Role
    rights: list[Right]
    created_by: str
    made_with: str | None = Field(description="the token that it was made with; it is revoked with that one")
    created_at: datetime
    expires_at: datetime
    revoked_by: str | None
    revoked_with: str | None = Field(description="the token that it was revoked with, if that was another one")
    revoked_at: datetime | None


class RevokedToken(TokenRow):
    """A revoked token, and those that were revoked with it: all that were created with it, directly or not."""

    also_revoked: list[TokenRow]


class NewToken(TokenRow):
    """A new token with its secret: the only time that it is visible."""

    secret: str


@dataclass(frozen=True, kw_only=True)
class TokenRequest:
    """A token to create. Without rights it gets those of its role; without a tenant it is an owner's.

    `person` is responsible for it: all tokens of one person count as one approver.
    """

    name: str
    role: Role
    tenant: str | None
    created_by: str
    person: str
    lasts: timedelta
    rights: frozenset[Right] | None = None
    made_with: str | None = None


def hashed(secret: str) -> bytes:
    """Return the stored hash of a secret. Secrets are random and long: a slow hash would add nothing."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def new_secret(prefix: str = PREFIX) -> str:
    """Return a new secret of 256 bits; the prefix lets scanners of source code find it."""
    return prefix + secrets.token_urlsafe(32)


async def create_token(pool: Pool, wanted: TokenRequest) -> NewToken:
    """Create a token for one tenant."""
    if wanted.tenant is None or wanted.role is Role.OWNER:
        raise InvalidInput("role 'owner': such a token is made on the command line only, with `redrive tokens create`")
    async with transaction(pool, wanted.tenant) as connection:
        return await _insert(connection, wanted)


async def create_owner_token(database_url: str, wanted: TokenRequest) -> NewToken:
    """Create a token for all tenants, as the owner of the tables: the application's role cannot."""
    async with as_owner(database_url) as connection:
        return await _insert(connection, wanted)


@contextlib.asynccontextmanager
async def as_owner(database_url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """Open a connection of the tables' owner, whom row level security does not restrict."""
    connection = await connect(database_url)
    try:
        yield connection
    except asyncpg.InsufficientPrivilegeError as error:
        raise Unavailable(
            f"set REDRIVE_OWNER_DATABASE_URL to the login that ran the migrations, this one may not do it: {error}"
        ) from None
    finally:
        await connection.close()


async def _insert(connection: "Connection | asyncpg.Connection[asyncpg.Record]", wanted: TokenRequest) -> NewToken:
    if not timedelta(0) < wanted.lasts <= LONGEST_LIFE:
        raise InvalidInput(f"expires: a token lasts up to {LONGEST_LIFE.days} days, and longer than none")
    secret, token_id = new_secret(), _ID_PREFIX + secrets.token_hex(8)
    row = await connection.fetchrow(
        _INSERT,
        token_id,
        wanted.tenant or EVERY_TENANT,
        clean(wanted.name),
        wanted.role.value,
        sorted(granted(wanted.role, wanted.rights)),
        hashed(secret),
        clean(wanted.created_by),
        wanted.lasts,
        clean(wanted.person),
        wanted.made_with,
    )
    if row is None:
        raise InvalidInput(f"token {wanted.made_with!r}, which makes this one, has expired or was revoked meanwhile")
    return NewToken.model_validate({**row, "secret": secret})


def made_with(rows: Iterable[TokenRow], token_id: str) -> list[TokenRow]:
    """Return the tokens that are revoked together with one and are still valid: created with it, directly or not."""
    made: dict[str | None, list[TokenRow]] = {}
    for row in rows:
        made.setdefault(row.made_with, []).append(row)
    found: list[TokenRow] = []
    pending = [token_id]
    while pending:
        below = made.pop(pending.pop(), [])
        found += [row for row in below if row.revoked_at is None]
        pending += [row.id for row in below]
    return found


async def list_tokens(pool: Pool, tenant: str | None, limit: int = 200) -> list[TokenRow]:
    """Return the newest tokens of a tenant, or of all."""
    async with reading(pool, tenant) as connection:
        rows = await connection.fetch(_NEWEST, limit)
    return [TokenRow.model_validate(dict(row)) for row in rows]


async def get_token(pool: Pool, tenant: str | None, token_id: str) -> TokenRow | None:
    """Return a token of a tenant, or of any, by its id or a beginning of it that no other has."""
    async with reading(pool, tenant) as connection:
        row = await connection.fetchrow(_ONE, await _whole_id(connection, token_id))
    return TokenRow.model_validate(dict(row)) if row else None


async def _whole_id(connection: "Connection | asyncpg.Connection[asyncpg.Record]", text: str) -> str:
    """Return the id that a text names: itself, or the only one that begins with it. Or the text, if there is none."""
    given = clean(text)
    if len(given.removeprefix(_ID_PREFIX)) < SHORTEST_PREFIX or await connection.fetchrow(_ONE, given):
        return given
    found = await ids_beginning(connection, "redrive.api_tokens", [given, _ID_PREFIX + given])
    return only_one(text, found, "token", InvalidInput) if found else given


async def revoke_token(pool: Pool, tenant: str, token_id: str, revoked_by: str) -> RevokedToken | None:
    """Revoke a token of a tenant and all that were created with it: their next requests are refused.

    None if there is none that is not yet revoked.
    """
    async with transaction(pool, tenant) as connection:
        return await _revoke(connection, token_id, revoked_by)


async def revoke_owner_token(database_url: str, token_id: str, revoked_by: str) -> RevokedToken | None:
    """Revoke any token and all that were created with it, in any tenant, as the owner of the tables.

    It is named by its id, or by a beginning of it that no other has.
    """
    async with as_owner(database_url) as connection, connection.transaction():
        return await _revoke(connection, await _whole_id(connection, token_id), revoked_by)


async def _revoke(
    connection: "Connection | asyncpg.Connection[asyncpg.Record]", token_id: str, revoked_by: str
) -> RevokedToken | None:
    revoked: list[TokenRow] = []
    # Repeat until there are no more: a token being created with one of them appears once that one is revoked.
    while rows := await connection.fetch(_REVOKE, clean(token_id), clean(revoked_by)):
        revoked += [TokenRow.model_validate(dict(row)) for row in rows]
    if not revoked:
        return None
    root = await connection.fetchrow(_ONE, clean(token_id))
    also = sorted((row for row in revoked if row.id != token_id), key=lambda row: row.created_at)
    return RevokedToken(**dict(root or {}), also_revoked=also)


async def token_principal(pool: Pool, secret: str) -> Principal | None:
    """Return the principal of a token's secret, unless it has expired or was revoked."""
    row = await pool.fetchrow("SELECT * FROM token_by_hash($1)", hashed(secret))
    return principal(row, is_token=True) if row else None


def principal(row: asyncpg.Record, *, is_token: bool) -> Principal:
    """Return a row as a principal."""
    tenant = None if row["tenant"] == EVERY_TENANT else row["tenant"]
    known = {right for right in row["rights"] if right in set(Right)}
    return Principal(
        id=f"{BY_TOKEN}{row['id']}" if is_token else f"member:{row['id']}",
        # The limit of a command's `requested_by`.
        name=f"{row['name'][:200]} ({row['id']})" if is_token else row["name"],
        role=Role(row["role"]),
        tenant=tenant,
        rights=frozenset(Right(right) for right in known),
        person=row["person"],
    )


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
