"""Operators and keys: reset, list, and the sweep that settles and expires them."""

from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from redrive import ModuleContext, Pipeline, Redrive, Registry, RunStatus, Terminal
from redrive.activities.maintenance import KeyActivities
from redrive.connection import database_url, owner_database_url
from redrive.contracts import ClaimRequest, KeyStatus, Workflow
from redrive.dead_letters import LetterId
from redrive.errors import InvalidInput, KeyInUse
from redrive.idempotency import postgres_claims as keys
from redrive.idempotency.claims import ClaimResult, Settlement
from redrive.idempotency.postgres_claims import PostgresClaims, claim_key, settle_key
from redrive.keys import run_id_for_key
from redrive.postgres.database import Database, connect
from redrive.postgres.tenancy import Executor, Pool
from redrive.redaction.redactor import Redactor
from redrive.schedules import keep_sweep_schedule
from redrive.settings import Settings
from redrive.store.audit import list_audit
from redrive.store.keys import KeyFilter, KeyRecord, delete_expired, get_key, list_keys, reset_key
from redrive.store.runs import Execution, begin_step
from tests.alerts import SILENT
from tests.conftest import WorkerFactory, eventually
from tests.integration.runs.samples import Number, add_good_pipeline
from tests.integration.store.letters import new_tenant

LONG_AGO = timedelta(days=400)


def request(tenant: str, key: str, generation: int = 0, **changes: object) -> ClaimRequest:
    """A wish for a key."""
    fields = {
        "tenant": tenant,
        "key": key,
        "generation": generation,
        "run_id": run_id_for_key(tenant, key, generation),
        "pipeline": "p",
        "request_hash": "a" * 64,
        "expires_at": datetime.now(UTC) + timedelta(days=1),
    }
    return ClaimRequest.model_validate(fields | changes)


async def found(pool: Pool, tenant: str, key: str) -> KeyRecord:
    """Return the key's row, which must be there."""
    record = await get_key(pool, tenant, key)
    assert record is not None
    return record


async def test_a_reset_key_starts_a_new_run_and_is_audited(
    worker: WorkerFactory, registry: Registry, caller: Redrive, pool: Pool, tenant: str
) -> None:
    """The next start makes the next generation's run, with another payload; the log has who, why and both runs."""
    add_good_pipeline(registry)
    async with worker():
        first = await caller.start("good", {"n": 1}, tenant=tenant, key="k")
        await caller.result(first.run_id)
        reset = await reset_key(pool, await found(pool, tenant, "k"), actor="ann", reason="wrong", forced=False)
        second = await caller.start("good", {"n": 2}, tenant=tenant, key="k")
        await caller.result(second.run_id)
        third = await caller.start("good", {"n": 2}, tenant=tenant, key="k")
    [line] = await list_audit(pool, tenant)
    assert (second.is_cached, third.is_cached) == (False, True)
    assert second.run_id == third.run_id == reset.run_id == run_id_for_key(tenant, "k", 1)
    assert (line.action, line.actor, line.reason, line.run_id) == ("key_reset", "ann", "wrong", first.run_id)
    assert line.after == {"generation": 1, "run_id": second.run_id, "forced": False}


async def test_a_restarted_run_takes_the_key_along(
    worker: WorkerFactory, registry: Registry, caller: Redrive, pool: Pool, tenant: str
) -> None:
    """The run of a dead letter is gone and an operator restarts it: the key belongs to the new run at once."""

    @registry.module("dies")
    async def dies(ctx: ModuleContext, given: Number) -> Number:
        raise Terminal("no")

    Pipeline("p", dies, registry=registry)
    async with worker():
        first = await caller.start("p", {}, tenant=tenant, key="k")
        letter = LetterId(tenant=tenant, run_id=first.run_id, step="dies")

        async def is_recorded() -> bool:
            lines = await list_audit(pool, tenant)
            return bool(lines)

        await eventually(is_recorded)
        await caller._client.get_workflow_handle(first.run_id).terminate("test")
        answer = await caller.dead_letters.restart(letter, requested_by="ann", reason="it is gone")
        record = await found(pool, tenant, "k")
        again = await caller.start("p", {}, tenant=tenant, key="k")
    assert answer.accepted
    assert (record.generation, record.status) == (1, KeyStatus.PROCESSING)
    assert again.run_id == record.run_id == run_id_for_key(tenant, "k", 1)
    assert again.is_cached


async def test_a_late_word_of_the_old_generation_does_not_undo_a_reset(pool: Pool, tenant: str) -> None:
    """A run that was open when its key was reset ends: the key belongs to the next one already."""
    wish = request(tenant, "k")
    await claim_key(pool, wish, free_failed=False)
    await reset_key(pool, await found(pool, tenant, "k"), actor="ann", reason="stuck", forced=True)
    await settle_key(pool, wish, Settlement(status=RunStatus.SUCCESS, output={"n": 1}))
    record = await found(pool, tenant, "k")
    assert (record.generation, record.status, record.response) == (1, KeyStatus.PROCESSING, None)


async def test_a_key_that_changed_meanwhile_is_not_reset(pool: Pool, tenant: str) -> None:
    """An operator decides about what they saw."""
    wish = request(tenant, "k")
    await claim_key(pool, wish, free_failed=False)
    seen = await found(pool, tenant, "k")
    await settle_key(pool, wish, Settlement(status=RunStatus.SUCCESS))
    with pytest.raises(KeyInUse, match="has changed meanwhile"):
        await reset_key(pool, seen, actor="ann", reason="stuck", forced=False)
    assert await list_audit(pool, tenant) == []


async def test_one_of_many_claims_wins(pool: Pool, tenant: str) -> None:
    """The statement that claims tells its caller whether the key was free, and the others what is there."""
    wish = request(tenant, "k")
    verdicts = [(await claim_key(pool, wish, free_failed=False)).verdict for _ in range(3)]
    assert verdicts == [ClaimResult.CLAIMED, ClaimResult.KNOWN, ClaimResult.KNOWN]


async def test_a_key_that_is_given_back_between_two_looks_is_claimed(
    settings: Settings, pool: Pool, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first statement finds another caller's row, the second one finds none: it takes the key."""
    wish, claims = request(tenant, "k"), PostgresClaims(database_url(settings))
    await claims.claim(wish)
    look = keys._take_new

    async def look_and_lose_it(database: Executor, asked: ClaimRequest) -> bool:
        taken = await look(database, asked)
        await claims.release(wish)
        return taken

    monkeypatch.setattr(keys, "_take_new", look_and_lose_it)
    claim = await claim_key(pool, wish, free_failed=False)
    await claims.close()
    assert claim.verdict is ClaimResult.CLAIMED
    assert (await found(pool, tenant, "k")).run_id == wish.run_id


async def test_keys_are_listed_by_tenant_page_by_page(pool: Pool, tenant: str) -> None:
    """The newest first; nobody sees another tenant's."""
    for number in range(5):
        await claim_key(pool, request(tenant, f"k{number}"), free_failed=False)
    await claim_key(pool, request(new_tenant(), "k9"), free_failed=False)
    chosen = KeyFilter(tenant=tenant, status=KeyStatus.PROCESSING)
    page = await list_keys(pool, chosen, 3)
    rest = await list_keys(pool, chosen, 3, page.cursor)
    assert [row.key for row in (*page.rows, *rest.rows)] == ["k4", "k3", "k2", "k1", "k0"]
    assert rest.cursor is None
    with pytest.raises(InvalidInput, match="other filters"):
        await list_keys(pool, KeyFilter(tenant=tenant), 3, page.cursor)


async def test_a_sweep_settles_keys_whose_end_nobody_wrote_down(
    *, worker: WorkerFactory, registry: Registry, settings: Settings, temporal: Client, pool: Pool, tenant: str
) -> None:
    """A run that ended while the database was away: the sweep asks Temporal. Those that are open stay as they are."""
    add_good_pipeline(registry)
    unstored = Redrive(temporal, task_queue=settings.task_queue, registry=registry)
    ended = await unstored.start("good", {"n": 1}, tenant=tenant, key="ended")
    async with worker():
        result = await unstored.result(ended.run_id)
        await claim_key(pool, request(tenant, "lost"), free_failed=False)
        await _age(settings, tenant, "ended", status="processing", response=None, run_status=None)
        async with Database(database_url(settings)) as database:
            activities = KeyActivities(temporal, database, Redactor(), SILENT, quiet=timedelta(0))

            async def is_settled() -> bool:
                # A sweep also meets the keys of other tests, whose runs Temporal may be slow to list.
                await ActivityEnvironment().run(activities.expire_keys)
                return (await found(pool, tenant, "ended")).status is KeyStatus.COMPLETED

            await eventually(is_settled)
    record = await found(pool, tenant, "ended")
    assert (record.status, record.response) == (KeyStatus.COMPLETED, result.output)
    assert (await found(pool, tenant, "lost")).status is KeyStatus.PROCESSING


async def _age(settings: Settings, tenant: str, key: str, **columns: object) -> None:
    """Change a row behind everybody's back."""
    owner: asyncpg.Connection[asyncpg.Record] = await connect(owner_database_url(settings))
    names = ", ".join(f"{name} = ${number}" for number, name in enumerate(columns, 3))
    await owner.execute(
        f"UPDATE redrive.idempotency_keys SET {names} WHERE tenant = $1 AND key = $2",  # noqa: S608
        tenant,
        key,
        *columns.values(),
    )
    await owner.close()


async def test_a_sweep_deletes_what_expired_when_temporal_has_forgotten_it(
    *, settings: Settings, pool: Pool, tenant: str
) -> None:
    """In batches, the oldest first; not while a run is open, and not before Temporal's retention is over."""
    old = datetime.now(UTC) - LONG_AGO
    for key in ("old-1", "old-2", "young", "open"):
        wish = request(tenant, key)
        await claim_key(pool, wish, free_failed=False)
        if key != "open":
            await settle_key(pool, wish, Settlement(status=RunStatus.SUCCESS))
    for key in ("old-1", "old-2", "open"):
        await _age(settings, tenant, key, expires_at=old, updated_at=old)
    await _age(settings, tenant, "young", expires_at=datetime.now(UTC) - timedelta(minutes=1))
    await begin_step(pool, Execution(tenant, "run-1:pay:run", "run-1", "pay", 1, 1))
    while await delete_expired(pool, LONG_AGO / 2, 1):
        pass
    left = await list_keys(pool, KeyFilter(tenant=tenant))
    assert sorted(row.key for row in left.rows) == ["open", "young"]


async def test_the_sweep_is_scheduled_once_and_runs(
    worker: WorkerFactory, temporal: Client, settings: Settings
) -> None:
    """Any number of workers ask for the schedule; it starts the sweep on their queue."""
    for _ in range(2):
        await keep_sweep_schedule(temporal, settings.task_queue)
    handle = temporal.get_schedule_handle(f"redrive-expire-keys-{settings.task_queue}")
    try:
        async with worker():
            await handle.trigger()

            async def swept() -> bool:
                query = f"WorkflowType = '{Workflow.EXPIRE_KEYS}' AND TaskQueue = '{settings.task_queue}'"
                return any([each.close_time async for each in temporal.list_workflows(query)])

            await eventually(swept, within=60)
    finally:
        await handle.delete()
