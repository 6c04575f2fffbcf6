"""The database's logins: what each may do, and what SQL that got into one of them can reach."""

import asyncio
import json
import tempfile
from pathlib import Path

import asyncpg
import pytest
from structlog.testing import capture_logs

from redrive.errors import Unavailable
from redrive.postgres.database import ACCESS_ROLE, APP_ROLE, connect, open_pool
from redrive.postgres.tenancy import Connection, Session, transaction
from redrive.settings import Settings
from redrive.starter.stack.stack import Stack, wipe
from redrive.starter.stack.state import StackInfo
from redrive.store.dead_letters.records import record_exhausted
from redrive.store.migrate import MigrationError, migrate
from tests.conftest import access_url, owner_url
from tests.integration.store.letters import exhausted, new_letter, new_tenant

# What SQL in a statement of ours would try first. Some are refused; some are done, and must not help.
WAYS_OUT = (
    "RESET ROLE",
    "SET ROLE NONE",
    "SET ROLE redrive",
    "SET ROLE redrive_console",
    "SET SESSION AUTHORIZATION redrive",
    "SET SESSION AUTHORIZATION DEFAULT",
    "RESET ALL",
    "DISCARD ALL",
    "SET row_security = off",
    "ALTER TABLE redrive.dead_letters DISABLE ROW LEVEL SECURITY",
    "ALTER TABLE redrive.dead_letters OWNER TO redrive_app",
    "DROP POLICY tenant ON redrive.dead_letters",
    "ALTER ROLE redrive_app BYPASSRLS",
    "GRANT redrive TO redrive_app",
    "CREATE OR REPLACE FUNCTION redrive.sees(tenant text) RETURNS boolean LANGUAGE sql RETURN true",
    "CREATE FUNCTION public.mine() RETURNS int LANGUAGE sql SECURITY DEFINER RETURN 1",
    "COPY redrive.dead_letters TO PROGRAM 'cat'",
    "UPDATE pg_catalog.pg_class SET relrowsecurity = false",
)
# Of those who let people in; a worker has no need of any.
ACCESS = (
    "SELECT * FROM redrive.token_by_hash('\\x00')",
    "SELECT * FROM redrive.session_by_hash('\\x00')",
    "SELECT * FROM redrive.active_member('ada@example.org')",
    "SELECT redrive.open_member_session('ada@example.org', '\\x00', '1 hour')",
    "SELECT redrive.open_token_session('\\x00', '\\x01', '1 hour')",
    "SELECT redrive.open_link_session('\\x00', '\\x01', '1 hour')",
    "SELECT redrive.put_link('\\x00', '\\x01', '1 hour')",
    "SELECT redrive.close_session('\\x00')",
    "SELECT id FROM redrive.api_tokens",
    "SELECT subject FROM redrive.members",
    "INSERT INTO redrive.api_tokens (id, tenant, name, role, rights, hash, created_by, person, expires_at) "
    "VALUES ('tok_x', 'mine', 'x', 'admin', '{read}', '\\x00', 'x', 'x', now() + interval '1 day')",
    "UPDATE redrive.api_tokens SET revoked_by = 'x', revoked_at = now()",
)


@pytest.fixture
async def foreign(stack: StackInfo) -> str:
    """A tenant with a dead letter."""
    tenant = new_tenant()
    async with await open_pool(stack.database_url.get_secret_value(), max_size=1) as pool:
        await record_exhausted(pool, exhausted(new_letter(tenant)))
    return tenant


@pytest.mark.parametrize("way", WAYS_OUT)
@pytest.mark.parametrize("settings", [{}, {"role": APP_ROLE}], ids=["bare", "as in a pool"])
async def test_no_statement_leads_out_of_a_tenant(
    stack: StackInfo, foreign: str, way: str, settings: dict[str, str]
) -> None:
    """Neither another role nor a changed table shows a row of another tenant to the application's login."""
    login = await asyncpg.connect(
        stack.database_url.get_secret_value(), server_settings=settings, statement_cache_size=0
    )
    try:
        await login.execute("SELECT set_config('redrive.tenant', 'mine', false)")
        assert await _seen(login, foreign) == 0
        try:
            await login.execute(way)
        except asyncpg.PostgresError:
            way += " (refused)"
        assert await _seen(login, foreign) == 0, way
        assert not await login.fetchval("SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = session_user")
    finally:
        await login.close()
    async with (
        await open_pool(stack.database_url.get_secret_value(), max_size=1) as pool,
        transaction(pool, foreign) as connection,
    ):
        assert await _seen(connection, foreign) == 1, "the row was there to be seen"


async def _seen(connection: "Connection | Session", tenant: str) -> int:
    try:
        return int(await connection.fetchval("SELECT count(*) FROM redrive.dead_letters WHERE tenant = $1", tenant))
    except asyncpg.InsufficientPrivilegeError:
        return 0


@pytest.mark.parametrize("statement", ACCESS)
async def test_a_worker_lets_nobody_in(stack: StackInfo, statement: str) -> None:
    """The login of workers and bridges opens no session, finds no token, makes none and revokes none."""
    for settings in ({}, {"role": APP_ROLE}):
        login = await asyncpg.connect(
            stack.database_url.get_secret_value(), server_settings=settings, statement_cache_size=0
        )
        try:
            await login.execute("SELECT set_config('redrive.tenant', 'mine', false)")
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await login.execute(statement)
        finally:
            await login.close()


@pytest.mark.parametrize("table", ["runs", "dead_letters", "audit_log", "events", "idempotency_keys", "approvals"])
async def test_the_login_that_lets_people_in_sees_no_records(stack: StackInfo, table: str) -> None:
    """Whoever has the console's other login has no run, payload or audit entry by it."""
    login = await asyncpg.connect(access_url(stack))
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await login.fetch(f"SELECT * FROM redrive.{table}")  # noqa: S608
    finally:
        await login.close()


async def test_a_login_that_can_do_too_much_is_warned_of(stack: StackInfo) -> None:
    """The owner's login works, and says so at every start; a login that may do no more than its role says nothing."""
    proper = [(stack.database_url.get_secret_value(), APP_ROLE), (access_url(stack), ACCESS_ROLE)]
    for url, role in proper:
        with capture_logs() as logs:
            await (await open_pool(url, max_size=1, role=role)).close()
        assert logs == []
    with capture_logs() as logs:
        async with await open_pool(owner_url(stack), max_size=1) as pool:
            assert await pool.fetchval("SELECT current_user") == APP_ROLE
    assert [(line["event"], line["log_level"], line["login"]) for line in logs] == [
        ("database.login_too_strong", "warning", "redrive")
    ]


async def test_a_login_without_the_role_is_told_which_setting_to_use(stack: StackInfo) -> None:
    """The console with a worker's login says what it lacks, without the password."""
    with pytest.raises(Unavailable, match="REDRIVE_ACCESS_DATABASE_URL to a login that may work as 'redrive_console'"):
        await open_pool(stack.database_url.get_secret_value(), max_size=1, role=ACCESS_ROLE)
    with pytest.raises(Unavailable, match=r"^set DATABASE_URL to a login that may work as 'redrive_app'"):
        await open_pool(access_url(stack), max_size=1)


async def test_migrating_by_another_login_is_told_which_setting_to_use(stack: StackInfo) -> None:
    """The application's login changes no schema, and the sentence names the setting."""
    with pytest.raises(MigrationError, match="set REDRIVE_OWNER_DATABASE_URL to the one that owns it"):
        await migrate(stack.database_url.get_secret_value())


async def test_clients_are_not_handed_the_owners_password_and_old_data_gets_logins() -> None:
    """stack.json has the application's login alone; a data directory of an earlier version is given the logins."""
    with tempfile.TemporaryDirectory(prefix="redrive-test-", ignore_cleanup_errors=True) as path:
        state_dir = Path(path)
        state_dir.chmod(0o711)
        async with Stack(Settings(temporal_address="127.0.0.1:1"), state_dir=state_dir, workers=0) as stack:
            shared = (state_dir / "stack.json").read_text()
            assert json.loads(shared)["database_url"].startswith("postgresql://redrive_app:")
            for url in (owner_url(stack.info), access_url(stack.info)):
                assert url.partition("@")[0].rpartition(":")[2] not in shared
            assert (state_dir / "logins.json").stat().st_mode & 0o777 == 0o600
            # Data as an earlier version has made it: one login, and no role for access.
            owner = await connect(owner_url(stack.info))
            await owner.execute("DROP OWNED BY redrive_console; DROP ROLE redrive_console")
            await owner.execute("ALTER ROLE redrive_app NOLOGIN PASSWORD NULL")
            await owner.execute("DELETE FROM redrive.migrations WHERE left(name, 4) IN ('0018', '0019')")
            await owner.close()
        assert not (state_dir / "stack.json").exists()
        assert not (state_dir / "logins.json").exists()
        for file in state_dir.glob("postgres.redrive_*.password"):
            await asyncio.to_thread(file.unlink)
        async with Stack(Settings(temporal_address="127.0.0.1:1"), state_dir=state_dir, workers=0) as again:
            for url, role in (
                (again.info.database_url.get_secret_value(), APP_ROLE),
                (access_url(again.info), ACCESS_ROLE),
            ):
                async with await open_pool(url, max_size=1, role=role) as pool:
                    assert await pool.fetchval("SELECT session_user") == role
        await wipe(state_dir)
