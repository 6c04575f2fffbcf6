import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from redrive.errors import Unavailable
from redrive.postgres.database import connect
from redrive.store.migrate import MIGRATIONS, MigrationError, migrate
from tests.integration.store.conftest import new_database, postgres_server

ALL = [file.stem for file in sorted(MIGRATIONS.glob("*.sql"))]


@pytest.fixture(scope="module")
async def server_url() -> AsyncIterator[str]:
    """A server of these tests' own: they take its roles away."""
    async with postgres_server() as url:
        yield url


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return shutil.copytree(MIGRATIONS, tmp_path / "migrations")


async def _drop_role(server_url: str) -> None:
    """Make the server forget the roles, as if no database on it had been migrated."""
    connection = await connect(f"{server_url}/postgres")
    names = await connection.fetch("SELECT datname FROM pg_database WHERE datname LIKE 'test%' OR datname = 'redrive'")
    for row in names:
        inside = await connect(f"{server_url}/{row['datname']}")
        await inside.execute("DROP OWNED BY redrive_app, redrive_console")
        await inside.close()
    await connection.execute("DROP ROLE redrive_app, redrive_console")
    await connection.close()


async def test_migrating_twice_applies_once(database_url: str) -> None:
    """The second call has nothing to do."""
    assert await migrate(database_url) == ALL
    assert await migrate(database_url) == []


async def test_many_at_once_apply_each_migration_once(database_url: str) -> None:
    """Processes that start together wait for each other."""
    results = await asyncio.gather(*(migrate(database_url) for _ in range(5)))
    assert sorted(results) == [[], [], [], [], ALL]


async def test_databases_of_one_server_migrate_at_once(server_url: str) -> None:
    """The role belongs to the whole server: making it in several databases at once works."""
    urls = [await new_database(server_url) for _ in range(4)]
    await _drop_role(server_url)
    assert await asyncio.gather(*(migrate(url) for url in urls)) == [ALL] * 4


async def test_changed_file_is_refused_and_nothing_applied(database_url: str, directory: Path) -> None:
    """History does not change: the file is named, and later ones wait."""
    await migrate(database_url, directory)
    first = directory / f"{ALL[0]}.sql"
    first.write_text(first.read_text() + "-- a thought\n")
    (directory / "9000_next.sql").write_text("CREATE TABLE redrive.next ()")
    with pytest.raises(MigrationError, match=f"'{ALL[0]}' was changed after it was applied"):
        await migrate(database_url, directory)
    connection = await connect(database_url)
    assert await connection.fetchval("SELECT to_regclass('redrive.next')") is None
    await connection.close()


async def test_migration_of_a_newer_release_is_no_obstacle(database_url: str, directory: Path) -> None:
    """An old process starts beside new ones."""
    (directory / "9000_newer.sql").write_text("CREATE TABLE redrive.newer ()")
    assert await migrate(database_url, directory) == [*ALL, "9000_newer"]
    assert await migrate(database_url) == []


async def test_failing_migration_leaves_nothing(database_url: str, directory: Path) -> None:
    """A migration is applied as a whole or not at all, and can be mended and tried again."""
    broken = directory / "9000_broken.sql"
    broken.write_text("CREATE TABLE redrive.half (); SELECT 1 / 0;")
    with pytest.raises(MigrationError, match="'9000_broken' failed and was rolled back: division by zero"):
        await migrate(database_url, directory)
    broken.write_text("CREATE TABLE redrive.half ();")
    assert await migrate(database_url, directory) == ["9000_broken"]


async def test_function_bodies_are_not_split(database_url: str, directory: Path) -> None:
    """Semicolons inside a function belong to it."""
    body = "BEGIN PERFORM 1; RETURN 'a;b'; END"
    sql = f"CREATE FUNCTION redrive.f() RETURNS text LANGUAGE plpgsql AS $$ {body} $$; CREATE TABLE redrive.g ();"
    (directory / "9000_function.sql").write_text(sql)
    await migrate(database_url, directory)
    connection = await connect(database_url)
    assert await connection.fetchval("SELECT redrive.f()") == "a;b"
    await connection.close()


@pytest.mark.parametrize(
    ("name", "complaint"), [("1_short.sql", "is not a migration's name"), ("0001_again.sql", "have the same number")]
)
async def test_wrong_file_name_is_refused(database_url: str, directory: Path, name: str, complaint: str) -> None:
    """The order of migrations is never in doubt."""
    (directory / name).write_text("SELECT 1")
    with pytest.raises(MigrationError, match=complaint):
        await migrate(database_url, directory)


async def test_owner_without_superuser_can_migrate(server_url: str) -> None:
    """A managed database gives no superuser: the right to make roles and to own the database is enough."""
    admin = await connect(f"{server_url}/postgres")
    await admin.execute("CREATE ROLE owner LOGIN CREATEROLE PASSWORD 'owner'")
    await admin.execute("CREATE DATABASE test_owned OWNER owner")
    await _drop_role(server_url)
    await admin.close()
    place = server_url.partition("@")[2]
    url = f"postgresql://owner:owner@{place}/test_owned"
    assert await migrate(url) == ALL
    connection = await connect(url)
    await connection.execute("SET ROLE redrive_app")
    await connection.close()


async def test_stranger_is_told_what_is_missing(server_url: str) -> None:
    """A user who may not make the role is told what an administrator has to do."""
    admin = await connect(f"{server_url}/postgres")
    await admin.execute("CREATE ROLE stranger LOGIN PASSWORD 'stranger'")
    await admin.execute("CREATE DATABASE test_strange OWNER stranger")
    if not await admin.fetchval("SELECT 1 FROM pg_roles WHERE rolname = 'redrive_app'"):
        await admin.execute("CREATE ROLE redrive_app NOLOGIN")
    url = f"postgresql://stranger:stranger@{server_url.partition('@')[2]}/test_strange"
    with pytest.raises(MigrationError, match="an administrator must run: GRANT redrive_app TO stranger"):
        await migrate(url)
    await admin.execute("GRANT redrive_app TO stranger")
    await admin.close()
    assert await migrate(url) == ALL


async def test_wrong_password_gives_a_sentence(server_url: str) -> None:
    """A refused password is named as such, and not quoted."""
    place = server_url.partition("@")[2]
    with pytest.raises(Unavailable, match="refused the user name or the password") as caught:
        await migrate(f"postgresql://redrive:wrong@{place}/postgres")
    assert "wrong" not in str(caught.value)


async def test_lock_is_free_after_a_failure(database_url: str, directory: Path) -> None:
    """A migration that failed in one process does not block the next process."""
    (directory / "9000_broken.sql").write_text("SELECT 1 / 0")
    for _ in range(2):
        with pytest.raises(MigrationError, match="9000_broken"):
            await asyncio.wait_for(migrate(database_url, directory), timeout=45)


async def test_bookkeeping_is_closed_to_the_application(database_url: str) -> None:
    """The application's role cannot rewrite what was applied."""
    await migrate(database_url)
    connection = await connect(database_url)
    await connection.execute("SET ROLE redrive_app")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.execute("DELETE FROM redrive.migrations")
    await connection.close()


async def test_older_tokens_count_as_whoever_made_them(database_url: str, directory: Path) -> None:
    """Tokens that the command line made before are one person's, with those made by them; nothing is said of it."""
    later = [file for file in directory.glob("*.sql") if file.stem >= "0012"]
    held = [file.rename(file.with_suffix(".held")) for file in later]
    await migrate(database_url, directory)
    connection = await connect(database_url)
    await connection.execute(
        """
        INSERT INTO redrive.api_tokens (id, tenant, name, role, rights, hash, created_by, person, expires_at)
        SELECT id, 'acme', id, 'admin', '{read}', id::bytea, maker, person, now()
        FROM (VALUES ('one', 'ada', 'token:one'), ('two', 'ada', 'token:two'), ('child', 'one', 'token:one'),
                     ('bob', 'bob', 'token:bob'), ('signed', 'eve', 'member:eve')) AS made (id, maker, person)
        """
    )
    for file in held:
        file.rename(file.with_suffix(".sql"))
    await migrate(database_url, directory)
    rows = await connection.fetch("SELECT id, person FROM redrive.api_tokens")
    audited = await connection.fetch("SELECT DISTINCT action FROM redrive.audit_log")
    await connection.close()
    ada, bob = "account:ada", "account:bob"
    expected = {"one": ada, "two": ada, "child": ada, "bob": bob, "signed": "member:eve"}
    assert {row["id"]: row["person"] for row in rows} == expected
    assert [row["action"] for row in audited] == ["token_created"]
