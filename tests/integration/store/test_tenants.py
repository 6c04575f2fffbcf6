"""Row level security and grants: what the application's role can do at most, whatever SQL it is made to run."""
# ruff: noqa: S608 (hostile SQL is what is tested)

import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from redrive.bulk import BulkCommand, BulkPlan, BulkStart
from redrive.contracts import ClaimRequest
from redrive.dead_letters import MalformedCommand, Verb
from redrive.idempotency.postgres_claims import claim_key
from redrive.postgres.database import ACCESS_ROLE, open_pool
from redrive.postgres.tenancy import Connection, Pool, transaction
from redrive.store.access import signing_key
from redrive.store.approvals import ask_plan_approval
from redrive.store.bulk.operations import open_bulk
from redrive.store.dead_letters import records as dead_letters
from redrive.store.dead_letters.commands import put_malformed
from redrive.store.messages.dead import put_dead
from redrive.store.messages.retry_queue import put_retries
from redrive.store.runs import Execution, add_to_counter, begin_step, put_retrying
from redrive.store.tenant_limits import hold_stream, take_tokens
from tests.integration.store.event_rows import put_some_events
from tests.integration.store.letters import exhausted, new_letter, new_tenant, replay, yes
from tests.integration.store.retries import new_dead, new_retry
from tests.integration.store.retrying import new_retrying
from tests.integration.store.test_dead_letters import Owner

BULK_TABLES = ["bulk_operations", "bulk_items", "approvals"]
EVENT_TABLES = ["events", "event_projections", "event_replays", "dead_events"]
KEY_TABLES = ["idempotency_keys", "step_results", "run_counters"]
MESSAGE_TABLES = ["retry_queue", "dead_messages"]
LIMIT_TABLES = ["tenant_streams", "tenant_tokens"]
# Who may come in: what nobody may do with these is in tests/integration/console/test_hostile.py.
ACCESS_TABLES = {"api_tokens", "members", "sessions"}
# Of the deployment and of no tenant.
DEPLOYMENT_TABLES = {"console_keys", "catalogs"}
TABLES = [
    "runs",
    "dead_letters",
    "dead_letter_counts",
    "refused_messages",
    "audit_log",
    "audit_heads",
    "alerts",
    "retrying",
    "run_labels",
    *BULK_TABLES,
    *EVENT_TABLES,
    *KEY_TABLES,
    *MESSAGE_TABLES,
    *LIMIT_TABLES,
]


@contextlib.asynccontextmanager
async def _as(pool: Pool, tenant: str | None) -> AsyncIterator[Connection]:
    """Work as the application with a setting of one's own making, then undo all."""
    async with pool.acquire() as connection:
        change = connection.transaction()
        await change.start()
        if tenant is not None:
            await connection.execute("SELECT set_config('redrive.tenant', $1, true)", tenant)
        yield connection
        await change.rollback()


@pytest.fixture
async def filled(pool: Pool, tenant: str) -> str:
    """A tenant with a row in every table."""
    letter = new_letter(tenant)
    await dead_letters.record_exhausted(pool, exhausted(letter, labels={"mission_id": "42"}))
    command = BulkCommand(tenant=tenant, verb=Verb.DISCARD)
    start = BulkStart(request_id=tenant, command=command, plan_hash="plan", requested_by="ada", reason="why")
    plan = BulkPlan(hash="plan", command=command, count=0, groups=[])
    await open_bulk(pool, start, lambda _members: plan, approvals=False)
    await ask_plan_approval(pool, start, plan.model_dump(mode="json"))
    await dead_letters.put_accepted(pool, letter, replay(), yes(replay()))
    await put_malformed(pool, letter, MalformedCommand(verb="replay", problem="not JSON"))
    await put_some_events(pool, tenant)
    expires_at = datetime.now(UTC) + timedelta(days=1)
    claim = ClaimRequest(
        tenant=tenant, key="k", run_id=f"run-{tenant}", pipeline="p", request_hash="h", expires_at=expires_at
    )
    await claim_key(pool, claim, free_failed=False)
    await begin_step(pool, Execution(tenant, "k", f"run-{tenant}", "first", 1, 1))
    await add_to_counter(pool, tenant=tenant, run_id=f"run-{tenant}", name="tokens", amount=1)
    await put_retrying(pool, new_retrying(tenant), timedelta(minutes=1))
    await take_tokens(pool, tenant, "starts", 10, 1)
    await hold_stream(pool, tenant, uuid.uuid4(), 1, timedelta(minutes=1))
    async with transaction(pool, tenant) as connection:
        await put_retries(connection, tenant, [new_retry()])
        await put_dead(connection, tenant, "retry.scheduled", [new_dead()])
    return tenant


async def test_every_table_is_bound_by_tenant(owner: Owner) -> None:
    """A table that somebody adds is in this file's list, or has nothing of a tenant in it."""
    rows = await owner.fetch(
        "SELECT relname, relrowsecurity FROM pg_class WHERE relnamespace = 'redrive'::regnamespace AND relkind = 'r'"
    )
    bound = {row["relname"]: row["relrowsecurity"] for row in rows}
    assert {name for name, secured in bound.items() if secured} == {*TABLES, *ACCESS_TABLES, *DEPLOYMENT_TABLES}
    assert {name for name, secured in bound.items() if not secured} == {"home", "migrations"}


async def test_the_console_alone_reads_its_key_and_cannot_change_it(pool: Pool, migrated_url: str) -> None:
    """The key that consoles sign with is made once, by the migration, and is long enough."""
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await signing_key(pool)
    async with await open_pool(migrated_url, max_size=1, role=ACCESS_ROLE) as access:
        assert len(await signing_key(access)) >= 32
        for change in ("UPDATE console_keys SET secret = ''", "DELETE FROM console_keys", "TRUNCATE console_keys"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await access.execute(change)


@pytest.mark.parametrize("table", TABLES)
async def test_own_rows_are_seen(pool: Pool, filled: str, table: str) -> None:
    """The other tests of this file mean something: there are rows to see."""
    async with _as(pool, filled) as connection:
        assert await connection.fetchval(f"SELECT count(*) FROM {table}") > 0
    async with _as(pool, "*") as connection:
        assert await connection.fetchval(f"SELECT count(*) FROM {table} WHERE tenant = $1", filled) > 0


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("setting", [None, "", "another", "%", "' OR true --", "tenant-%"])
async def test_rows_of_others_are_not_seen(pool: Pool, filled: str, table: str, setting: str | None) -> None:
    """Without a tenant, or with another, there is nothing: not by reading, counting or joining."""
    async with _as(pool, setting) as connection:
        for sql in (
            f"SELECT count(*) FROM {table}",
            f"SELECT count(*) FROM {table} WHERE tenant = '{filled}'",
            f"SELECT count(*) FROM {table} WHERE true OR tenant = '{filled}'",
            f"SELECT count(*) FROM (VALUES (1)) AS one JOIN {table} ON true",
            f"WITH all_of_it AS (TABLE {table}) SELECT count(*) FROM all_of_it",
        ):
            assert await connection.fetchval(sql) == 0


@pytest.mark.parametrize("setting", [None, "", "another", "*"])
@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO runs (run_id, tenant, pipeline, status, started_at) VALUES ('x', '{}', 'p', 'SUCCESS', now())",
        "INSERT INTO alerts (tenant, fingerprint, count, sent_at) VALUES ('{}', 'f', 1, now())",
        'INSERT INTO retrying SELECT (jsonb_populate_record(tried, \'{{"run_id": "x"}}\')).* '
        "FROM retrying AS tried WHERE tenant = '{}'",
        "INSERT INTO audit_log (tenant, action, actor) VALUES ('{}', 'refused', 'mallory')",
        "INSERT INTO approvals (tenant, plan_hash, plan, reason, requested_by, requested_person) "
        "VALUES ('{}', 'p', '{{}}', 'r', 'mallory', 'mallory')",
        'INSERT INTO bulk_operations SELECT (jsonb_populate_record(bulk, \'{{"id": "x"}}\')).* '
        "FROM bulk_operations AS bulk WHERE tenant = '{}'",
        "INSERT INTO bulk_items SELECT (jsonb_populate_record(item, '{{\"position\": 7}}')).* "
        "FROM bulk_items AS item WHERE tenant = '{}'",
        'INSERT INTO dead_letters SELECT (jsonb_populate_record(letter, \'{{"id": "x", "run_id": "x"}}\')).* '
        "FROM dead_letters AS letter WHERE tenant = '{}'",
    ],
)
async def test_rows_of_others_are_not_written(pool: Pool, filled: str, sql: str, setting: str | None) -> None:
    """Nobody writes into another tenant; who reads all tenants writes none."""
    async with _as(pool, setting) as connection:
        with contextlib.suppress(asyncpg.InsufficientPrivilegeError):
            assert await connection.execute(sql.format(filled)) == "INSERT 0 0"


@pytest.mark.parametrize("table", ["idempotency_keys", "retry_queue", "retrying", "tenant_streams"])
async def test_rows_of_others_are_not_deleted(pool: Pool, filled: str, table: str) -> None:
    """The tables that the application deletes from give up the rows of its own tenant only."""
    for setting in (None, "", "another", "*"):
        async with _as(pool, setting) as connection:
            assert await connection.execute(f"DELETE FROM {table}") == "DELETE 0"
    async with _as(pool, filled) as connection:
        assert await connection.execute(f"DELETE FROM {table}") == "DELETE 1"


@pytest.mark.parametrize(
    "table", ["runs", "dead_letters", "alerts", *BULK_TABLES, *EVENT_TABLES, *MESSAGE_TABLES, *LIMIT_TABLES]
)
async def test_rows_of_others_are_not_changed(pool: Pool, filled: str, table: str) -> None:
    """An update reaches no row of another tenant, and gives none away."""
    async with _as(pool, "another") as connection:
        assert await connection.execute(f"UPDATE {table} SET tenant = 'another'") == "UPDATE 0"
    for setting, gift in ((filled, "another"), ("*", "another"), (filled, "*"), (filled, "")):
        async with _as(pool, setting) as connection:
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
                await connection.execute(f"UPDATE {table} SET tenant = '{gift}' WHERE tenant = '{filled}'")


@pytest.mark.parametrize("table", [*KEY_TABLES, "retrying"])
async def test_rows_that_expire_are_neither_changed_nor_deleted(pool: Pool, filled: str, table: str) -> None:
    """Who reads all tenants deletes nothing of any; nobody gives a row away."""
    for setting in ("another", "*", ""):
        async with _as(pool, setting) as connection:
            assert await connection.execute(f"DELETE FROM {table}") == "DELETE 0"
            assert await connection.execute(f"UPDATE {table} SET run_id = 'mine'") == "UPDATE 0"
    async with _as(pool, filled) as connection:
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
            await connection.execute(f"UPDATE {table} SET tenant = 'another'")


@pytest.mark.parametrize("name", ["", "*"])
async def test_nobody_is_called_everybody(pool: Pool, name: str) -> None:
    """No row can belong to the name that reads all, or to no name."""
    async with _as(pool, name) as connection:
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
            await connection.execute("INSERT INTO alerts VALUES ($1, 'f', 1, now())", name)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE audit_log SET actor = 'mallory'",
        "DELETE FROM audit_log",
        "TRUNCATE audit_log",
        "ALTER TABLE audit_log DISABLE TRIGGER ALL",
        "SET session_replication_role = replica",
        "UPDATE audit_heads SET number = 0",
        "DELETE FROM audit_heads",
        "INSERT INTO audit_heads VALUES ('x', 1, '')",
        "UPDATE dead_letter_counts SET count = 0",
        "INSERT INTO dead_letter_counts VALUES ('x', 'pending', 1)",
        "DELETE FROM dead_letter_counts",
        "DELETE FROM dead_letters",
        "DELETE FROM runs",
        "DELETE FROM alerts",
        "DELETE FROM events",
        "DELETE FROM dead_events",
        "DELETE FROM bulk_operations",
        "DELETE FROM bulk_items",
        "DELETE FROM approvals",
        "DELETE FROM dead_messages",
        "TRUNCATE retry_queue",
        "TRUNCATE dead_letters CASCADE",
        "DROP TABLE alerts",
        "ALTER TABLE dead_letters DISABLE ROW LEVEL SECURITY",
        "DROP POLICY tenant ON dead_letters",
        "CREATE POLICY mine ON dead_letters USING (true)",
        "CREATE OR REPLACE FUNCTION redrive.sees(tenant text) RETURNS boolean LANGUAGE sql RETURN true",
        "SELECT redrive.chain_audit()",
        "SELECT redrive.count_dead_letters()",
        "SELECT redrive.follow_dead_letter()",
    ],
)
async def test_application_cannot(pool: Pool, filled: str, sql: str) -> None:
    """The role can neither rewrite what was recorded nor open what is closed."""
    async with _as(pool, filled) as connection:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(sql)


async def test_functions_are_closed_to_everybody_else(owner: Owner) -> None:
    """Postgres lets everybody call a new function: each of ours is closed, and opened for the application only."""
    names = await owner.fetch(
        """
        SELECT proname FROM pg_proc, aclexplode(coalesce(proacl, acldefault('f', proowner))) AS granted
        WHERE pronamespace = 'redrive'::regnamespace AND granted.grantee = 0
        """
    )
    assert names == []


async def test_setting_ends_with_the_transaction(pool: Pool, filled: str) -> None:
    """The next user of a connection does not inherit a tenant, neither from a transaction nor from a function."""
    await dead_letters.record_exhausted(pool, exhausted(new_letter(new_tenant())))
    async with pool.acquire() as connection:
        async with connection.transaction():
            await connection.execute("SELECT set_config('redrive.tenant', $1, true)", filled)
        run = {"run_id": filled, "tenant": filled, "pipeline": "p", "status": "SUCCESS", "started_at": "2026-01-01Z"}
        await connection.execute("SELECT redrive.put_run($1)", json.dumps(run))
        assert await connection.fetchval("SELECT count(*) FROM dead_letters") == 0
        assert await connection.fetchval("SELECT count(*) FROM runs") == 0
