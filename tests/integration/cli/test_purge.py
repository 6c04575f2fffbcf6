"""`redrive purge` and `redrive audit verify --head` against a real database."""

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime

import asyncpg
import pytest

from redrive.postgres.database import connect, open_pool
from redrive.settings import RecordKind
from redrive.starter.stack.state import StackInfo
from redrive.store.audit import verify
from tests.conftest import owner_url
from tests.integration.cli.command import CommandLine
from tests.integration.cli.operator import WHY, Operator
from tests.integration.store.letters import new_tenant
from tests.integration.store.old_rows import OLD, SEED

MANY = 3000
_LETTERS = f"""
    WITH made AS (
        INSERT INTO redrive.dead_letters (id, tenant, run_id, step, module, pipeline, status, category, error_type,
            message, stack, attempts, cycle, first_failed_at, last_failed_at, config, correlation_id, build_id,
            fingerprint, updated_at)
        SELECT $1 || '-letter-' || n, $1, $1 || '-lettered-' || n, 's', 's', 'p', 'discarded', 'c', 'E', 'm', '', '[]',
            1, {OLD}, {OLD}, '{{}}', 'c', 'g', 'f', {OLD} FROM generate_series(1, $2::int) AS n RETURNING *)
    INSERT INTO redrive.runs (run_id, tenant, pipeline, status, started_at, closed_at, updated_at)
    SELECT run_id, tenant, 'p', 'FAILED', {OLD}, {OLD}, {OLD} FROM made
"""  # noqa: S608


async def _owner(stack: StackInfo) -> "asyncpg.Connection[asyncpg.Record]":
    connection = await connect(owner_url(stack))
    await connection.execute("SET search_path = redrive")
    return connection


async def test_a_purge_killed_anywhere_leaves_everything_consistent(redrive: CommandLine, stack: StackInfo) -> None:
    """Killed with -9 again and again: counters, audit log and rows agree each time, and the next goes on."""
    owner, tenant = await _owner(stack), new_tenant()
    await owner.execute(_LETTERS, tenant, MANY)
    await owner.execute(SEED["runs"], tenant, MANY)
    await owner.execute(SEED["runs open"], tenant, 5)
    kills = 0
    while (left := await owner.fetchval("SELECT count(*) FROM runs WHERE tenant = $1", tenant)) > 5:
        process = await redrive.start("purge", "--tenant", tenant, "--yes", "--by", "ada")
        running = asyncio.create_task(process.communicate())
        if kills < 4:
            await _until_fewer(owner, tenant, left, running)
            kills += process.returncode is None
            if process.returncode is None:
                process.kill()
        await running
        await _check_consistent(owner, tenant)
    assert kills >= 1
    assert await owner.fetchval("SELECT count(*) FROM dead_letters WHERE tenant = $1", tenant) == 0
    told: Counter[str] = Counter()
    for row in await owner.fetch("SELECT after FROM audit_log WHERE tenant = $1 AND action = 'purged'", tenant):
        entry = json.loads(row["after"])
        told[entry["kind"]] += entry["count"]
    assert told == Counter({"dead_letters": MANY, "runs": 2 * MANY})
    await owner.close()
    async with await open_pool(stack.database_url.get_secret_value(), max_size=1) as pool:
        [proof] = await verify(pool, tenant)
    assert proof.is_whole


async def _until_fewer(
    owner: "asyncpg.Connection[asyncpg.Record]", tenant: str, runs: int, running: "asyncio.Task[tuple[bytes, bytes]]"
) -> None:
    """Wait until a purge has deleted something, or is over."""
    letters = await owner.fetchval("SELECT count(*) FROM dead_letters WHERE tenant = $1", tenant)
    while not running.done():
        now = await owner.fetchrow(
            "SELECT (SELECT count(*) FROM dead_letters WHERE tenant = $1), "
            "(SELECT count(*) FROM runs WHERE tenant = $1)",
            tenant,
        )
        if now and tuple(now) != (letters, runs):
            return
        await asyncio.sleep(0.002)


async def _check_consistent(owner: "asyncpg.Connection[asyncpg.Record]", tenant: str) -> None:
    counter = await owner.fetchval("SELECT coalesce(sum(count), 0) FROM dead_letter_counts WHERE tenant = $1", tenant)
    assert counter == await owner.fetchval("SELECT count(*) FROM dead_letters WHERE tenant = $1", tenant)
    orphans = await owner.fetchval(
        "SELECT count(*) FROM dead_letters AS letter WHERE tenant = $1 AND NOT EXISTS "
        "(SELECT FROM runs WHERE runs.run_id = letter.run_id)",
        tenant,
    )
    assert orphans == 0


async def test_purge_counts_asks_and_deletes(redrive: CommandLine, stack: StackInfo) -> None:
    """A dry run and a purge without a yes delete nothing; kinds and tenants are chosen; retention is a setting."""
    owner, tenant = await _owner(stack), new_tenant()
    for kind in ("runs", "approvals"):
        await owner.execute(SEED[kind], tenant, 7)
    words = ("purge", "--tenant", tenant)
    dry = (await redrive(*words, "--dry-run", "--json")).document
    assert dry == {
        "dry_run": True,
        "tenants": {tenant: {kind.value: 0 for kind in RecordKind} | {"runs": 7, "approvals": 7}},
    }
    unasked = await redrive(*words)
    assert unasked.code == 1
    assert "add --yes" in unasked.sentence
    longer = await redrive(*words, "--yes", REDRIVE_RETENTION='{"runs": "101d", "approvals": null}')
    assert (longer.code, longer.out, longer.err.strip()) == (0, "", "there is nothing to delete")
    assert (await redrive(*words, "--kind", "runs", "--yes", "--json")).document["tenants"][tenant]["runs"] == 7
    assert await owner.fetchval("SELECT count(*) FROM approvals WHERE tenant = $1", tenant) == 7
    table = await redrive(*words, "--yes")
    assert tenant in table.out
    assert await owner.fetchval("SELECT count(*) FROM approvals WHERE tenant = $1", tenant) == 0
    nobody = await redrive("purge", "--tenant", "nobody", "--yes")
    assert "'nobody'" in nobody.sentence
    await owner.close()


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ('{"audit": "29d"}', "REDRIVE_RETENTION.audit: Input should be greater than or equal to 30 days"),
        ('{"runs": "1h"}', "REDRIVE_RETENTION.runs"),
        ('{"letters": "90d"}', "REDRIVE_RETENTION.letters: Extra inputs are not permitted"),
        ("90d", "REDRIVE_RETENTION: not valid JSON"),
    ],
)
async def test_wrong_retention_is_named(bare: CommandLine, setting: str, sentence: str) -> None:
    """Nothing is deleted by a setting that was mistyped."""
    said = await bare("purge", "--dry-run", REDRIVE_RETENTION=setting)
    assert said.code == 1
    assert sentence in said.sentence


async def test_verify_compares_with_heads_that_were_noted(operator: Operator) -> None:
    """A log that was rewritten as a whole is whole by itself; only a head from elsewhere tells."""
    letter = await operator.park()
    words = ("audit", "verify", "--tenant", operator.tenant)
    noted = (await operator.command(*words, "--json")).document["tenants"][0]["head"]
    assert (await operator.dlq("discard", letter, *WHY, "--yes")).code == 0
    assert (await operator.command(*words, "--head", noted)).code == 0
    later = (await operator.command(*words, "--json")).document["tenants"][0]["head"]
    file = operator.folder / "heads.jsonl"
    lines = [
        json.dumps({"at": str(datetime.now(UTC)), "tenant": operator.tenant, "head": head}) for head in (noted, later)
    ]
    file.write_text("\n".join([*lines, '{"at": "half a li']))
    assert (await operator.command("audit", "verify", "--heads", str(file), "--tenant", operator.tenant)).code == 0
    await operator.sql(
        "UPDATE redrive.audit_log SET actor = 'mallory' WHERE tenant = $1 AND number = 1", operator.tenant
    )
    await _rechain(operator)
    rewritten = await operator.command(*words)
    assert rewritten.code == 0, "the whole chain was rewritten: it fits itself"
    for given in (("--head", noted), ("--head", later), ("--heads", str(file))):
        said = await operator.command(*words, *given)
        assert said.code == 1
        assert "was rewritten: row" in said.sentence
    beyond = await operator.command(*words, "--head", f"99{noted[1:]}")
    assert "lost its end: row 99 is missing" in beyond.sentence
    for wrong in (("--head", "7"), ("--heads", str(operator.folder / "none")), ("--heads", __file__)):
        said = await operator.command(*words, *wrong)
        assert said.code == 1
        assert said.sentence
    alone = await operator.command("audit", "verify", "--head", noted)
    assert (alone.code, "--tenant" in alone.sentence) == (2, True)


async def _rechain(operator: Operator) -> None:
    await operator.sql(
        f"""
        DO $$
        DECLARE entry redrive.audit_log; previous bytea := '\\x';
        BEGIN
            FOR entry IN SELECT * FROM redrive.audit_log WHERE tenant = '{operator.tenant}' ORDER BY number LOOP
                entry.hash := redrive.audit_hash(previous, entry);
                UPDATE redrive.audit_log SET hash = entry.hash WHERE tenant = entry.tenant AND number = entry.number;
                previous := entry.hash;
            END LOOP;
            UPDATE redrive.audit_heads SET hash = previous WHERE tenant = '{operator.tenant}';
        END $$
        """  # noqa: S608
    )
