"""The purge: what is over and old goes, in batches; what is open stays, whoever asks; counters and chains fit."""

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from redrive.contracts import RunStatus
from redrive.dead_letters import LetterFilter, LetterId, Resolve
from redrive.postgres.tenancy import Pool, transaction
from redrive.settings import RecordKind, RetentionSettings
from redrive.store.audit import Head, Match, compare, read_head, verify
from redrive.store.dead_letters import records as dead_letters
from redrive.store.dead_letters.lists import total
from redrive.store.retention import AuditNotWhole, Purge, purge_tenant, tenants
from redrive.store.runs import FinishedRun, put_finished
from tests.integration.store.letters import discard, exhausted, new_letter, new_tenant, no, replay, resolve, yes
from tests.integration.store.old_rows import OLD, SEED, TABLES
from tests.integration.store.test_dead_letters import Owner

KEEP = RetentionSettings()


async def _seed(owner: Owner, tenant: str, what: str, count: int) -> None:
    await owner.execute(SEED[what], tenant, count)


async def _purge(pool: Pool, tenant: str, keep: RetentionSettings = KEEP, **changes: Any) -> Counter[str]:
    counts: Counter[str] = Counter()
    async for batch in purge_tenant(pool, tenant, Purge(keep=keep, who="ada", **changes)):
        counts[batch.kind.value] += batch.count
    return +counts


async def _count(owner: Owner, table: str, tenant: str) -> int:
    count: int = await owner.fetchval(f"SELECT count(*) FROM {table} WHERE tenant = $1", tenant)  # noqa: S608
    return count


async def _letter(pool: Pool, owner: Owner, tenant: str, command: Any = None) -> LetterId:
    """Make a dead letter that failed, and was closed if a command says so, a hundred days ago."""
    letter = new_letter(tenant)
    await dead_letters.record_exhausted(pool, exhausted(letter, at=datetime.now(UTC) - timedelta(days=100)))
    if command is not None:
        await dead_letters.put_accepted(pool, letter, command, yes(command))
    if isinstance(command, Resolve):
        facts: dict[str, Any] = {
            "pipeline": "orders",
            "correlation_id": None,
            "idempotency_key": None,
            "started_at": datetime.now(UTC),
            "revision": 9_000_000,
        }
        run = FinishedRun(run_id=letter.run_id, tenant=tenant, status=RunStatus.SUCCESS, **facts)
        await put_finished(pool, run)
    await owner.execute(f"UPDATE dead_letters SET updated_at = {OLD} WHERE id = $1", letter.workflow_id)  # noqa: S608
    await owner.execute(
        f"UPDATE runs SET started_at = {OLD}, closed_at = CASE WHEN closed_at IS NOT NULL THEN {OLD} END "  # noqa: S608
        "WHERE run_id = $1",
        letter.run_id,
    )
    return letter


async def _age_audit(owner: Owner, tenant: str, through: int, days: int = 500) -> None:
    """Let the first lines of a log be old, with a chain that fits: as if they had been written then."""
    async with owner.transaction():
        await owner.execute("SET LOCAL session_replication_role = replica")
        await owner.execute(
            "UPDATE audit_log SET at = at - $3 * interval '1 day' WHERE tenant = $1 AND number <= $2",
            tenant,
            through,
            days,
        )
        await owner.execute(
            """
            DO $$
            DECLARE entry audit_log; previous bytea := '\\x';
            BEGIN
                FOR entry IN SELECT * FROM audit_log WHERE tenant = current_setting('test.tenant') ORDER BY number LOOP
                    entry.hash := audit_hash(previous, entry);
                    UPDATE audit_log SET hash = entry.hash WHERE tenant = entry.tenant AND number = entry.number;
                    previous := entry.hash;
                END LOOP;
                UPDATE audit_heads SET hash = previous WHERE tenant = current_setting('test.tenant');
            END $$
            """.replace("current_setting('test.tenant')", f"'{tenant}'")
        )


@pytest.mark.parametrize("kind", list(TABLES))
async def test_what_is_over_and_old_goes_and_what_is_open_stays(
    pool: Pool, owner: Owner, tenant: str, kind: str
) -> None:
    """Whatever its age; of each batch the audit log has a line."""
    await _seed(owner, tenant, kind, 25)
    await _seed(owner, tenant, f"{kind} open", 6)
    would = await _purge(pool, tenant, KEEP.only({RecordKind(kind)}), batch=4, dry_run=True)
    assert would == Counter({kind: 25})
    assert await _count(owner, TABLES[kind], tenant) == 31
    done = await _purge(pool, tenant, KEEP.only({RecordKind(kind)}), batch=4)
    assert done == Counter({kind: 25})
    assert await _count(owner, TABLES[kind], tenant) == 6
    assert await _purge(pool, tenant, batch=4) == (Counter({"runs": 25}) if kind == "events" else Counter())
    lines = await owner.fetch(
        "SELECT actor, after FROM audit_log WHERE tenant = $1 AND action = 'purged' AND after ->> 'kind' = $2",
        tenant,
        kind,
    )
    assert sum(json.loads(line["after"])["count"] for line in lines) == 25
    assert {line["actor"] for line in lines} == {"ada"}
    for child in ("bulk_items", "event_projections", "event_replays"):
        assert await _count(owner, child, tenant) == 0
    [proof] = await verify(pool, tenant)
    assert proof.is_whole


async def test_what_is_young_stays(pool: Pool, owner: Owner, tenant: str) -> None:
    """A setting of none keeps a kind for ever; a longer one keeps it for longer."""
    for kind in TABLES:
        await _seed(owner, tenant, kind, 3)
    none = RetentionSettings.model_validate({kind.value: None for kind in RecordKind})
    longer = RetentionSettings.model_validate({kind.value: timedelta(days=150) for kind in RecordKind})
    for keep in (none, longer):
        assert not await _purge(pool, tenant, keep)


async def test_dead_letters_go_when_they_and_their_runs_are_over(pool: Pool, owner: Owner, tenant: str) -> None:
    """Open ones stay, and so does one of a run that goes on; a run's row goes after its dead letters. Counters fit."""
    closed = [await _letter(pool, owner, tenant, command) for command in (resolve(), discard(), discard())]
    is_open = [await _letter(pool, owner, tenant), await _letter(pool, owner, tenant, replay())]
    going_on = await _letter(pool, owner, tenant, resolve())
    await owner.execute("UPDATE runs SET closed_at = NULL, status = 'RUNNING' WHERE run_id = $1", going_on.run_id)
    assert await _purge(pool, tenant, KEEP.only({RecordKind.RUNS})) == Counter()
    assert (await _purge(pool, tenant, batch=2)) == Counter({"dead_letters": 3, "runs": 3})
    left = {row["id"] for row in await owner.fetch("SELECT id FROM dead_letters WHERE tenant = $1", tenant)}
    assert left == {letter.workflow_id for letter in (*is_open, going_on)}
    assert not left & {letter.workflow_id for letter in closed}
    counters = {
        row["status"]: row["count"]
        for row in await owner.fetch("SELECT status, count FROM dead_letter_counts WHERE tenant = $1", tenant)
    }
    true = {
        row["status"]: row["count"]
        for row in await owner.fetch(
            "SELECT status, count(*) AS count FROM dead_letters WHERE tenant = $1 GROUP BY 1", tenant
        )
    }
    assert {status: count for status, count in counters.items() if count} == true
    shown = await total(pool, LetterFilter(tenant=tenant))
    assert shown
    assert shown.count == 3


async def test_dead_letter_of_an_open_bulk_operation_stays(pool: Pool, owner: Owner, tenant: str) -> None:
    """Its items read the outcome from the record."""
    letter = await _letter(pool, owner, tenant, discard())
    await _seed(owner, tenant, "bulk open", 1)
    await owner.execute(
        "INSERT INTO bulk_items (tenant, bulk_id, position, letter_id, run_id, step, version, status) "
        "VALUES ($1, 'open-1', 1, $2, $3, $4, 1, 'ACCEPTED')",
        tenant,
        letter.workflow_id,
        letter.run_id,
        letter.step,
    )
    assert not await _purge(pool, tenant)
    await owner.execute(
        f"UPDATE bulk_operations SET status = 'DONE', finished_at = {OLD} WHERE tenant = $1",  # noqa: S608
        tenant,
    )
    assert await _purge(pool, tenant) == Counter({"bulk": 1, "dead_letters": 1, "runs": 1})


async def test_run_of_a_stored_event_keeps_its_row(pool: Pool, owner: Owner, tenant: str) -> None:
    """Without it a duplicate of the event would start a second run."""
    await _seed(owner, tenant, "events", 3)
    assert not await _purge(pool, tenant, KEEP.only({RecordKind.RUNS}))
    await owner.execute("UPDATE event_projections SET status = 'failed' WHERE event_id = $1", f"{tenant}-event-1")
    assert await _purge(pool, tenant) == Counter({"events": 2, "runs": 2})


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM {table} WHERE tenant = $1",
        "SELECT purge('{kind}', now() + interval '1 year', 10000, NULL, NULL, 'mallory', false)",
    ],
)
@pytest.mark.parametrize("kind", list(TABLES))
async def test_the_application_cannot_delete_what_is_open(
    pool: Pool, owner: Owner, tenant: str, kind: str, statement: str
) -> None:
    """Not by itself, and not by the functions, however far in the future it asks for."""
    await _seed(owner, tenant, f"{kind} open", 6)
    arguments = (tenant,) if "$1" in statement else ()
    try:
        async with transaction(pool, tenant) as connection:
            await connection.execute(statement.format(table=TABLES[kind], kind=kind), *arguments)
    except asyncpg.InsufficientPrivilegeError:
        assert "DELETE" in statement
    assert await _count(owner, TABLES[kind], tenant) == 6


async def test_a_purge_reaches_one_tenant(pool: Pool, owner: Owner, tenant: str) -> None:
    """The transaction's own: others' rows stay, and without a tenant, or with all of them, nothing is purged."""
    other = new_tenant()
    for name in (tenant, other):
        await _seed(owner, name, "runs", 5)
    assert {tenant, other} <= set(await tenants(pool))
    assert await _purge(pool, tenant) == Counter({"runs": 5})
    assert await _count(owner, "runs", other) == 5
    for scope in ("", "*"):
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute("SELECT set_config('redrive.tenant', $1, true)", scope)
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="for one tenant"):
                await connection.execute("SELECT purge('runs', now(), 10, NULL, NULL, 'mallory', false)")


async def test_purges_at_once_delete_each_row_once(pool: Pool, owner: Owner, tenant: str) -> None:
    """The schedule's and an operator's do not trip over each other."""
    await _seed(owner, tenant, "runs", 200)
    letters = [await _letter(pool, owner, tenant, discard()) for _ in range(20)]
    done = await asyncio.gather(*(_purge(pool, tenant, batch=7) for _ in range(3)))
    assert sum(done, Counter()) == Counter({"runs": 220, "dead_letters": len(letters)})


async def _filled(pool: Pool, tenant: str, lines: int) -> LetterId:
    letter = new_letter(tenant)
    await dead_letters.record_exhausted(pool, exhausted(letter))
    for number in range(lines - 1):
        command = replay(f"r{number}")
        await dead_letters.put_refused(pool, letter, command, no(command))
    return letter


async def _head(pool: Pool, tenant: str) -> Head:
    [proof] = await verify(pool, tenant)
    return read_head(tenant, proof.head)


AUDIT = KEEP.only({RecordKind.AUDIT})


async def test_the_audit_log_is_proved_across_a_cut(pool: Pool, owner: Owner, tenant: str) -> None:
    """The cut is a line with the hash of what went before; heads of after it, and of the cut itself, still fit."""
    await _filled(pool, tenant, 12)
    await _age_audit(owner, tenant, 8)
    hashes = {
        row["number"]: Head(tenant, row["number"], row["hash"].hex())
        for row in await owner.fetch("SELECT number, hash FROM audit_log WHERE tenant = $1", tenant)
    }
    assert await _purge(pool, tenant, AUDIT, dry_run=True) == Counter({"audit": 8})
    assert await _purge(pool, tenant, AUDIT, batch=3) == Counter({"audit": 8})
    [proof] = await verify(pool, tenant)
    assert (proof.is_whole, proof.cut, proof.entries) == (True, 8, 5)
    cut = await owner.fetchrow("SELECT * FROM audit_log WHERE tenant = $1 ORDER BY number DESC LIMIT 1", tenant)
    assert cut
    assert (cut["number"], cut["action"], cut["actor"]) == (13, "audit_cut", "ada")
    matches = dict(await compare(pool, [hashes[number] for number in (3, 8, 9, 12)]))
    assert [matches[hashes[number]] for number in (3, 8, 9, 12)] == [Match.CUT, Match.FITS, Match.FITS, Match.FITS]
    beyond = Head(tenant, 99, hashes[3].hash)
    wrong = [Head(tenant, 8, hashes[3].hash), Head(tenant, 9, hashes[3].hash)]
    assert [match for _, match in await compare(pool, [beyond, *wrong])] == [
        Match.MISSING, Match.DIFFERS, Match.DIFFERS,
    ]  # fmt: skip
    assert not await _purge(pool, tenant, AUDIT)


async def test_a_cut_that_was_cut_off_goes_on(pool: Pool, owner: Owner, tenant: str) -> None:
    """After one batch of it the log is whole, and the rest goes with the next purge without another cut."""
    await _filled(pool, tenant, 12)
    await _age_audit(owner, tenant, 8)
    async with transaction(pool, tenant) as connection:
        assert await connection.fetchval("SELECT cut_audit('400 days', 3, 'ada', false)") == 3
    [proof] = await verify(pool, tenant)
    assert (proof.is_whole, proof.cut) == (True, 8)
    assert await _purge(pool, tenant, AUDIT) == Counter({"audit": 5})
    assert await _count(owner, "audit_log", tenant) == 5


@pytest.mark.parametrize(
    ("tampering", "broken"),
    [
        ("UPDATE audit_log SET after = after || '{\"through\": 10}' WHERE tenant = $1 AND action = 'audit_cut'", 11),
        ("DELETE FROM audit_log WHERE tenant = $1 AND action = 'audit_cut'", 1),
        ("UPDATE audit_log SET actor = 'mallory' WHERE tenant = $1 AND number = 9", 9),
        ("DELETE FROM audit_log WHERE tenant = $1 AND number = 9", 9),
        (
            "UPDATE audit_log SET action = 'audit_cut', after = (SELECT jsonb_build_object('through', 10, 'hash', "
            "encode(hash, 'hex')) FROM audit_log WHERE tenant = $1 AND number = 10) WHERE tenant = $1 AND number = 12",
            12,
        ),
        ("UPDATE audit_log SET after = after || '{\"through\": 13}' WHERE tenant = $1 AND action = 'audit_cut'", 1),
    ],
)
async def test_tampering_with_a_cut_is_found(
    pool: Pool, owner: Owner, tenant: str, tampering: str, broken: int
) -> None:
    """A cut proves itself: it is a line of the chain that it begins."""
    await _filled(pool, tenant, 12)
    await _age_audit(owner, tenant, 8)
    await _purge(pool, tenant, AUDIT)
    async with owner.transaction():
        await owner.execute("SET LOCAL session_replication_role = replica")
        await owner.execute(tampering, tenant)
    [proof] = await verify(pool, tenant)
    assert proof.first_broken == broken


async def test_a_log_that_was_changed_is_not_cut(pool: Pool, owner: Owner, tenant: str) -> None:
    """The cut would do away with the traces."""
    await _filled(pool, tenant, 6)
    await _age_audit(owner, tenant, 4)
    async with owner.transaction():
        await owner.execute("SET LOCAL session_replication_role = replica")
        await owner.execute("UPDATE audit_log SET actor = 'mallory' WHERE tenant = $1 AND number = 2", tenant)
    with pytest.raises(AuditNotWhole, match=tenant):
        await _purge(pool, tenant, AUDIT)
    assert await _count(owner, "audit_log", tenant) == 6


async def test_the_application_cannot_cut_what_is_young(pool: Pool, owner: Owner, tenant: str) -> None:
    """Nor pretend that a cut or a purge was made, nor delete lines."""
    await _filled(pool, tenant, 3)
    for statement in (
        "SELECT cut_audit('29 days', 100, 'mallory', false)",
        "DELETE FROM audit_log",
        "INSERT INTO audit_log (tenant, action, actor, after) VALUES (current_setting('redrive.tenant'), 'audit_cut', "
        '\'mallory\', \'{"through": 2, "hash": "00"}\')',
        "INSERT INTO audit_log (tenant, action, actor) VALUES (current_setting('redrive.tenant'), 'purged', 'mallory')",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with transaction(pool, tenant) as connection:
                await connection.execute(statement)
    assert await _count(owner, "audit_log", tenant) == 3


async def test_an_idle_log_is_not_cut_again_and_again(pool: Pool, owner: Owner, tenant: str) -> None:
    """Once nothing but cuts is old, there is nothing to cut."""
    await _filled(pool, tenant, 3)
    await _age_audit(owner, tenant, 3)
    assert await _purge(pool, tenant, AUDIT) == Counter({"audit": 3})
    async with owner.transaction():
        await owner.execute("SET LOCAL session_replication_role = replica")
        await owner.execute("UPDATE audit_log SET at = at - interval '500 days' WHERE tenant = $1", tenant)
    assert not await _purge(pool, tenant, AUDIT, dry_run=True)
