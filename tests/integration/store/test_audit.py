"""The audit log: a chain that shows what was done to it."""

import asyncio
import re

import asyncpg
import pytest

from redrive.dead_letters import LetterId
from redrive.postgres.tenancy import Pool, transaction
from redrive.store.audit import Action, Entry, Proof, verify, write
from redrive.store.dead_letters import records as dead_letters
from tests.integration.store.letters import exhausted, new_letter, new_tenant, no, replay
from tests.integration.store.test_dead_letters import Owner

ROWS = 6


async def _fill(pool: Pool, tenant: str, rows: int = ROWS) -> LetterId:
    letter = new_letter(tenant)
    await dead_letters.record_exhausted(pool, exhausted(letter))
    for number in range(rows - 1):
        command = replay(f"r{number}")
        await dead_letters.put_refused(pool, letter, command, no(command))
    return letter


async def _proof(pool: Pool, tenant: str) -> Proof:
    [proof] = await verify(pool, tenant)
    return proof


async def test_untouched_log_is_whole(pool: Pool, tenant: str) -> None:
    """Its proof says how long it is and where it ends."""
    await _fill(pool, tenant)
    proof = await _proof(pool, tenant)
    assert (proof.tenant, proof.entries, proof.first_broken) == (tenant, ROWS, None)
    assert re.fullmatch(rf"{ROWS}:[0-9a-f]{{64}}", proof.head)


_COPY = """
    INSERT INTO audit_log SELECT tenant, {number}, at, action, dead_letter, run_id, step, actor, reason, {request},
        before, after, hash FROM audit_log WHERE tenant = $1 AND number = 3
"""


@pytest.mark.parametrize(
    ("tampering", "broken"),
    [
        ("UPDATE audit_log SET actor = 'mallory' WHERE tenant = $1 AND number = 3", 3),
        ("UPDATE audit_log SET reason = NULL WHERE tenant = $1 AND number = 2", 2),
        ("UPDATE audit_log SET after = '{}' WHERE tenant = $1 AND number = 1", 1),
        ("UPDATE audit_log SET at = at + interval '1 microsecond' WHERE tenant = $1 AND number = 6", 6),
        ("UPDATE audit_log SET hash = '\\x00' WHERE tenant = $1 AND number = 4", 4),
        ("UPDATE audit_log SET number = 77 WHERE tenant = $1 AND number = 4", 4),
        ("DELETE FROM audit_log WHERE tenant = $1 AND number = 1", 1),
        ("DELETE FROM audit_log WHERE tenant = $1 AND number = 3", 3),
        ("DELETE FROM audit_log WHERE tenant = $1 AND number IN (3, 4)", 3),
        ("DELETE FROM audit_log WHERE tenant = $1 AND number = 6", 6),
        ("DELETE FROM audit_log WHERE tenant = $1 AND number >= 5", 5),
        ("DELETE FROM audit_log WHERE tenant = $1", 1),
        (_COPY.format(number=7, request="'x'"), 7),
        (_COPY.format(number=0, request="'x'"), 0),
        (_COPY.format(number=-5, request="'x'"), -5),
        ("DELETE FROM audit_heads WHERE tenant = $1", 1),
        ("UPDATE audit_heads SET hash = '\\x00' WHERE tenant = $1", 6),
        ("UPDATE audit_heads SET number = 4 WHERE tenant = $1", 5),
    ],
)
async def test_tampering_is_found(pool: Pool, owner: Owner, tenant: str, tampering: str, broken: int) -> None:
    """Not even the owner of the tables, with the triggers off, changes a row unseen; the first one is named."""
    await _fill(pool, tenant)
    other = new_tenant()
    await _fill(pool, other)
    async with owner.transaction():
        await owner.execute("SET LOCAL session_replication_role = replica")
        await owner.execute(tampering, tenant)
    assert (await _proof(pool, tenant)).first_broken == broken
    assert (await _proof(pool, other)).is_whole


async def test_rewritten_tail_does_not_fit_the_head(pool: Pool, owner: Owner, tenant: str) -> None:
    """Who edits the last row and hashes it anew is found by the head."""
    await _fill(pool, tenant)
    async with owner.transaction():
        await owner.execute("SET LOCAL session_replication_role = replica")
        await owner.execute("UPDATE audit_log SET actor = 'mallory' WHERE tenant = $1 AND number = 6", tenant)
        await owner.execute(
            """
            UPDATE audit_log AS entry SET hash = audit_hash(before_it.hash, entry) FROM audit_log AS before_it
            WHERE entry.tenant = $1 AND entry.number = 6 AND before_it.tenant = $1 AND before_it.number = 5
            """,
            tenant,
        )
    assert (await _proof(pool, tenant)).first_broken == 6


async def test_every_tenant_is_proved_by_itself(pool: Pool) -> None:
    """Without a tenant there is one proof for each."""
    tenants = sorted(new_tenant() for _ in range(3))
    for tenant in tenants:
        await _fill(pool, tenant, 2)
    proofs = {proof.tenant: proof for proof in await verify(pool, None)}
    assert [proofs[tenant].entries for tenant in tenants] == [2, 2, 2]


async def test_long_log_is_proved_in_pieces(pool: Pool, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain goes on from one piece to the next."""
    monkeypatch.setattr("redrive.store.audit._CHUNK", 4)
    await _fill(pool, tenant, 13)
    proof = await _proof(pool, tenant)
    assert (proof.entries, proof.first_broken) == (13, None)


async def test_rollback_leaves_no_gap(pool: Pool, tenant: str) -> None:
    """A number that was given to a transaction that failed is given again."""
    letter = await _fill(pool, tenant)

    async def fail() -> None:
        async with transaction(pool, tenant) as connection:
            await write(connection, Entry(action=Action.ORPHANED, letter=letter))
            await connection.execute("SELECT 1 / 0")

    async def succeed() -> None:
        async with transaction(pool, tenant) as connection:
            await write(connection, Entry(action=Action.ORPHANED, letter=letter))

    results = await asyncio.gather(*(each() for each in (fail, succeed) * 8), return_exceptions=True)
    assert sum(isinstance(result, asyncpg.DivisionByZeroError) for result in results) == 8
    proof = await _proof(pool, tenant)
    assert (proof.entries, proof.first_broken) == (ROWS + 8, None)


async def test_number_time_and_hash_are_the_databases(pool: Pool, tenant: str) -> None:
    """What an insert says about its place in the chain is not believed."""
    await _fill(pool, tenant)
    async with transaction(pool, tenant) as connection:
        row = await connection.fetchrow(
            """
            INSERT INTO audit_log (tenant, number, at, action, actor, hash)
            VALUES ($1, 1000, '2000-01-01', 'orphaned', 'mallory', '\\x00')
            RETURNING number, at > now() - interval '1 minute' AS fresh
            """,
            tenant,
        )
    assert row is not None
    assert (row["number"], row["fresh"]) == (ROWS + 1, True)
    assert (await _proof(pool, tenant)).is_whole


async def test_temporary_tables_do_not_fool_the_trigger(migrated_url: str, pool: Pool, tenant: str) -> None:
    """A table of the same name that a session makes for itself is not taken for the real one."""
    await _fill(pool, tenant)
    async with transaction(pool, tenant) as connection:
        await connection.execute(
            """
            CREATE TEMP TABLE audit_heads (tenant text, number bigint, hash bytea) ON COMMIT DROP;
            CREATE TEMP TABLE audit_log (tenant text) ON COMMIT DROP;
            """
        )
        await connection.execute("INSERT INTO pg_temp.audit_heads VALUES ($1, 0, '')", tenant)
        await write(connection, Entry(action=Action.ORPHANED, letter=new_letter(tenant)))
    proof = await _proof(pool, tenant)
    assert (proof.entries, proof.first_broken) == (ROWS + 1, None)
