"""Migrations: plain SQL files, applied in order, once each, by one process at a time.

An applied file must never change: its checksum is kept. A migration that the database has and this code does not know
is fine: old processes run beside new ones while a release rolls out.
"""

import hashlib
import re
from pathlib import Path
from typing import Final, NamedTuple

import asyncpg

from redrive.errors import RedriveError
from redrive.postgres.database import connect

MIGRATIONS: Final = Path(__file__).parent / "migrations"
_FILE_NAME: Final = re.compile(r"\d{4}_[a-z0-9_]+\.sql")
_LOCK: Final = 7_233_841_029_384_756
_BOOKKEEPING: Final = """
    CREATE SCHEMA IF NOT EXISTS redrive;
    CREATE TABLE IF NOT EXISTS redrive.migrations (
        name text PRIMARY KEY,
        checksum text NOT NULL,
        applied_at timestamptz NOT NULL DEFAULT now()
    );
"""


class MigrationError(RedriveError):
    """A migration cannot be applied; the database is in the state before that migration."""

    code = "migration_error"


async def migrate(database_url: str, directory: Path = MIGRATIONS) -> list[str]:
    """Apply the migrations that the database lacks, and return their names."""
    migrations = _read(directory)
    connection = await connect(database_url)
    try:
        # The lock belongs to the session: closing the connection releases it, even if this process is killed.
        await connection.execute("SELECT pg_advisory_lock($1)", _LOCK)
        return await _apply_missing(connection, migrations)
    finally:
        await connection.close()


class _Migration(NamedTuple):
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def _read(directory: Path) -> list[_Migration]:
    files = sorted(directory.glob("*.sql"))
    numbers: dict[str, str] = {}
    for file in files:
        if not _FILE_NAME.fullmatch(file.name):
            raise MigrationError(f"{file.name!r} is not a migration's name: it must read like 0001_what_it_does.sql")
        other = numbers.setdefault(file.name[:4], file.name)
        if other != file.name:
            raise MigrationError(f"{other!r} and {file.name!r} have the same number: give the newer one the next")
    return [_Migration(file.stem, file.read_text(encoding="utf-8")) for file in files]


async def _apply_missing(connection: "asyncpg.Connection[asyncpg.Record]", migrations: list[_Migration]) -> list[str]:
    try:
        await connection.execute(_BOOKKEEPING)
        rows = await connection.fetch("SELECT name, checksum FROM redrive.migrations")
    except asyncpg.InsufficientPrivilegeError as error:
        raise MigrationError(
            "this login may not change the schema 'redrive', "
            f"set REDRIVE_OWNER_DATABASE_URL to the one that owns it: {error}"
        ) from error
    except asyncpg.PostgresError as error:
        raise MigrationError(f"the schema 'redrive' cannot be made: {error}") from error
    applied = {row["name"]: row["checksum"] for row in rows}
    changed = [each.name for each in migrations if applied.get(each.name, each.checksum) != each.checksum]
    if changed:
        raise MigrationError(
            f"migration {changed[0]!r} was changed after it was applied: restore the file, and add a new one instead"
        )
    missing = [each for each in migrations if each.name not in applied]
    for migration in missing:
        await _apply(connection, migration)
    return [each.name for each in missing]


async def _apply(connection: "asyncpg.Connection[asyncpg.Record]", migration: _Migration) -> None:
    name, sql = migration
    try:
        async with connection.transaction():
            await connection.execute(sql)
            await connection.execute(
                "INSERT INTO redrive.migrations (name, checksum) VALUES ($1, $2)", name, migration.checksum
            )
    except asyncpg.PostgresError as error:
        raise MigrationError(f"migration {name!r} failed and was rolled back: {error}") from error
