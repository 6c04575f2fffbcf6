"""What a start with a key answers: before, while and after its run; also when Temporal has forgotten it."""

import asyncio
import uuid
from datetime import timedelta

import pytest

from redrive import IdempotencyMismatch, ModuleContext, Pipeline, Redrive, Registry, RunStatus, Terminal
from redrive.connection import database_url
from redrive.contracts import KeyStatus
from redrive.dead_letters import Discard, LetterId
from redrive.errors import UnknownPipeline
from redrive.idempotency.postgres_claims import INLINE_LIMIT, PostgresClaims
from redrive.keys import run_id_for_key
from redrive.postgres.tenancy import Pool
from redrive.settings import Settings
from redrive.store.keys import KeyRecord, get_key
from tests.conftest import WorkerFactory, eventually
from tests.integration.runs.catalogs import new_caller, publish
from tests.integration.runs.samples import Blob, Number, add_good_pipeline, quick


async def row(pool: Pool, tenant: str, key: str) -> KeyRecord:
    """Return the key's row, which must be there."""
    record = await get_key(pool, tenant, key)
    assert record is not None
    return record


async def test_a_key_answers_with_its_run_and_then_with_its_result(
    worker: WorkerFactory, registry: Registry, caller: Redrive, pool: Pool, tenant: str
) -> None:
    """The first start makes the run, later ones find it; when it has ended they have its output, from the row alone."""
    add_good_pipeline(registry)
    key = "billing:ann:invoice-7:create:v1"
    first = await caller.start("good", {"n": 1}, tenant=tenant, key=key)
    claimed = await row(pool, tenant, key)
    second = await caller.start("good", {"n": 1.0}, tenant=tenant, key=key)
    async with worker():
        result = await caller.result(first.run_id)
    third = await caller.start("good", {"n": 1}, tenant=tenant, key=key)
    completed = await row(pool, tenant, key)
    assert [each.is_cached for each in (first, second, third)] == [False, True, True]
    assert {each.run_id for each in (first, second, third)} == {run_id_for_key(tenant, key)} == {completed.run_id}
    assert (second.status, second.response) == (RunStatus.RUNNING, None)
    assert (third.status, third.response, third.error) == (RunStatus.SUCCESS, result.output, None)
    assert (claimed.status, claimed.domain, claimed.user_id) == (KeyStatus.PROCESSING, "billing", "ann")
    assert (completed.status, completed.response) == (KeyStatus.COMPLETED, result.output)


async def test_a_failed_key_answers_with_its_error(
    worker: WorkerFactory, registry: Registry, caller: Redrive, pool: Pool, tenant: str
) -> None:
    """While the run is parked the key is in process; when an operator gives up, it answers with who and why."""

    @registry.module("dies")
    async def dies(ctx: ModuleContext, given: Number) -> Number:
        raise Terminal("no such account")

    Pipeline("p", dies, registry=registry)
    async with worker():
        first = await caller.start("p", {}, tenant=tenant, key="k")

        async def is_parked() -> bool:
            return (await caller.start("p", {}, tenant=tenant, key="k")).status is RunStatus.DLQ_PENDING

        await eventually(is_parked)
        parked = await row(pool, tenant, "k")
        letter = LetterId(tenant=tenant, run_id=first.run_id, step="dies")
        order = Discard(request_id=uuid.uuid4().hex, requested_by="ann", reason="account is gone")
        await caller.dead_letters.send(letter, order)

        async def is_failed() -> KeyRecord | None:
            record = await row(pool, tenant, "k")
            return record if record.status is KeyStatus.FAILED else None

        failed = await eventually(is_failed)
        again = await caller.start("p", {}, tenant=tenant, key="k")
    assert parked.status is KeyStatus.PROCESSING
    assert (again.run_id, again.is_cached, again.status) == (first.run_id, True, RunStatus.FAILED)
    assert again.error == failed.error == "step 'dies' was discarded by ann: account is gone"


async def test_a_lost_word_about_the_end_is_found_by_the_next_start(
    worker: WorkerFactory, registry: Registry, caller: Redrive, pool: Pool, tenant: str
) -> None:
    """A run ended without a word in the database: the next start with the key asks Temporal, and writes it down."""
    waiting = asyncio.Event()

    @registry.module("wait")
    async def wait(ctx: ModuleContext, given: Number) -> Number:
        waiting.set()
        await asyncio.sleep(60)
        return given

    Pipeline("p", wait, registry=registry)
    async with worker():
        first = await caller.start("p", {}, tenant=tenant, key="k")
        await asyncio.wait_for(waiting.wait(), 45)
        await caller.cancel(first.run_id, reason="changed my mind")

        async def answered() -> bool:
            return (await caller.start("p", {}, tenant=tenant, key="k")).status is RunStatus.CANCELED

        await eventually(answered)
        again = await caller.start("p", {}, tenant=tenant, key="k")
    record = await row(pool, tenant, "k")
    assert (again.status, again.error) == (RunStatus.CANCELED, "the run was canceled")
    assert (record.status, record.run_status) == (KeyStatus.FAILED, RunStatus.CANCELED)


async def test_a_big_response_is_read_where_the_answer_says(
    worker: WorkerFactory, registry: Registry, caller: Redrive, pool: Pool, tenant: str
) -> None:
    """An output over the limit does not come along with each answer; the row has it."""

    @registry.module("produce")
    async def produce(ctx: ModuleContext, given: Number) -> Blob:
        return Blob(data="x" * given.n)

    Pipeline("p", produce, registry=registry)
    async with worker():
        started = await caller.start("p", {"n": INLINE_LIMIT}, tenant=tenant, key="k")
        await caller.result(started.run_id)
        again = await caller.start("p", {"n": INLINE_LIMIT}, tenant=tenant, key="k")
    assert again.response is None
    assert again.response_at == f"redrive keys show 'k' --tenant {tenant} --json"
    assert (await row(pool, tenant, "k")).response == {"data": "x" * INLINE_LIMIT}


async def test_an_output_with_secrets_stays_in_the_run(
    worker: WorkerFactory, registry: Registry, caller: Redrive, pool: Pool, tenant: str
) -> None:
    """What looks like a secret is not stored with the key: the answer says where the run has it."""

    @registry.module("produce")
    async def produce(ctx: ModuleContext, given: Number) -> Blob:
        return Blob(data="Authorization: Bearer abcdefghijklmnopqrstuvwxyz0123456789")

    Pipeline("p", produce, registry=registry)
    async with worker():
        started = await caller.start("p", {}, tenant=tenant, key="k")
        await caller.result(started.run_id)
        again = await caller.start("p", {}, tenant=tenant, key="k")
    assert (again.status, again.response) == (RunStatus.SUCCESS, None)
    assert again.response_at == f"redrive run status {started.run_id} --json"
    assert (await row(pool, tenant, "k")).response is None


async def test_another_request_with_the_key_is_refused(
    worker: WorkerFactory, registry: Registry, caller: Redrive, settings: Settings, tenant: str
) -> None:
    """Another payload or pipeline is a mismatch, by the row and, without a database, by the run's own input."""
    add_good_pipeline(registry)
    Pipeline("other", registry.modules["good"], registry=registry)
    unstored = Redrive(caller._client, task_queue=settings.task_queue, registry=registry)
    async with worker():
        await caller.start("good", {"n": 1}, tenant=tenant, key="k")
        for redrive in (caller, unstored):
            for pipeline, payload in (("good", {"n": 4711}), ("other", {"n": 1})):
                with pytest.raises(IdempotencyMismatch, match="key 'k' belongs to another request") as refusal:
                    await redrive.start(pipeline, payload, tenant=tenant, key="k")
                assert refusal.value.known in str(refusal.value)
                assert refusal.value.given in str(refusal.value)
                assert "4711" not in str(refusal.value).replace(refusal.value.given, "").replace(
                    refusal.value.known, ""
                )


async def test_a_refused_request_leaves_no_fingerprint_behind(
    worker: WorkerFactory, registry: Registry, caller: Redrive, settings: Settings, tenant: str
) -> None:
    """The key has a run that the database does not know of: another request is refused, the right one is answered."""
    add_good_pipeline(registry)
    unstored = Redrive(caller._client, task_queue=settings.task_queue, registry=registry)
    first = await unstored.start("good", {"n": 1}, tenant=tenant, key="k")
    with pytest.raises(IdempotencyMismatch):
        await caller.start("good", {"n": 2}, tenant=tenant, key="k")
    answer = await caller.start("good", {"n": 1}, tenant=tenant, key="k")
    assert (answer.run_id, answer.is_cached) == (first.run_id, True)


@pytest.mark.parametrize("given", [[], ["a text"], [{"n": 1}]])
async def test_a_run_that_was_started_by_hand_answers_its_key(
    registry: Registry, caller: Redrive, settings: Settings, tenant: str, given: list[object]
) -> None:
    """Its input says nothing of a request, so it is taken for the one of whoever asks."""
    add_good_pipeline(registry)
    run_id = run_id_for_key(tenant, "k")
    await caller._client.start_workflow("Anything", args=given, id=run_id, task_queue="nobody")
    answer = await caller.start("good", {"n": 1}, tenant=tenant, key="k")
    assert (answer.run_id, answer.is_cached) == (run_id, True)


async def test_an_expired_key_starts_the_next_generation(
    worker: WorkerFactory, registry: Registry, caller: Redrive, pool: Pool, tenant: str
) -> None:
    """After its time a key makes a new run, of any payload; while the run is open it does not expire."""
    add_good_pipeline(registry)
    brief = timedelta(milliseconds=1)
    first = await caller.start("good", {"n": 1}, tenant=tenant, key="k", ttl=brief)
    while_open = await caller.start("good", {"n": 1}, tenant=tenant, key="k", ttl=brief)
    async with worker():
        await caller.result(first.run_id)
        second = await caller.start("good", {"n": 2}, tenant=tenant, key="k")
        await caller.result(second.run_id)
    assert while_open.is_cached
    assert not second.is_cached
    assert second.run_id == run_id_for_key(tenant, "k", 1) != first.run_id
    assert (await row(pool, tenant, "k")).generation == 1


@pytest.mark.parametrize("freed", [False, True])
async def test_a_failed_key_is_freed_only_by_policy(
    *, worker: WorkerFactory, registry: Registry, settings: Settings, caller: Redrive, tenant: str, freed: bool
) -> None:
    """By default a key whose run FAILED answers with the failure; the setting lets it start anew."""
    add_good_pipeline(registry)
    claims = PostgresClaims(database_url(settings), free_failed=freed)
    async with Redrive(caller._client, task_queue=settings.task_queue, registry=registry, claims=claims) as redrive:
        first = await redrive.start("good", {}, tenant=tenant, key="k")
        await caller._client.get_workflow_handle(first.run_id).terminate("test")
        found = await redrive.start("good", {}, tenant=tenant, key="k")
        again = await redrive.start("good", {}, tenant=tenant, key="k")
    assert (found.is_cached, found.status) == (True, RunStatus.FAILED)
    assert again.is_cached is not freed
    assert again.run_id == run_id_for_key(tenant, "k", 1 if freed else 0)


async def test_a_refused_start_gives_the_key_back(
    *, worker: WorkerFactory, registry: Registry, caller: Redrive, settings: Settings, pool: Pool, tenant: str
) -> None:
    """No worker's catalog has the pipeline: no row stays behind, and the key is free for what is right."""
    add_good_pipeline(registry)
    async with worker(), new_caller(settings, caller._client) as stranger:
        with pytest.raises(Exception, match="'goood' is not known"):
            await stranger.start("goood", {}, tenant=tenant, key="k")
        assert await get_key(pool, tenant, "k") is None
        started = await stranger.start("good", {}, tenant=tenant, key="k")
        await stranger.result(started.run_id)
    assert not started.is_cached


async def test_a_known_key_answers_though_its_payload_fits_no_longer(
    *, worker: WorkerFactory, registry: Registry, caller: Redrive, settings: Settings, tenant: str
) -> None:
    """A catalog decides about new runs only: a key with a run has its answer, whatever the workers know by now."""
    add_good_pipeline(registry)
    temporal, changed = caller._client, f"{settings.task_queue}-changed"
    await publish(settings, temporal, Registry(), "newer", task_queue=changed)
    async with worker(), new_caller(settings, temporal, catalogs_of=changed) as stranger:
        started = await caller.start("good", {"n": 1}, tenant=tenant, key="k")
        await caller.result(started.run_id)
        again = await stranger.start("good", {"n": 1}, tenant=tenant, key="k")
        with pytest.raises(UnknownPipeline, match="known: none"):
            await stranger.start("good", {"n": 1}, tenant=tenant, key="other")
    assert (again.run_id, again.is_cached, again.status) == (started.run_id, True, RunStatus.SUCCESS)


async def test_a_key_started_by_name_in_a_quick_policy_has_one_run(
    worker: WorkerFactory, registry: Registry, caller: Redrive, tenant: str
) -> None:
    """Fifty starts at once in one process: one run, one caller that made it."""
    calls: list[str] = []

    @registry.module("count", policy=quick())
    async def count(ctx: ModuleContext, given: Number) -> Number:
        calls.append(ctx.run_id)
        return given

    Pipeline("p", count, registry=registry)
    async with worker():
        answers = await asyncio.gather(*(caller.start("p", {}, tenant=tenant, key="k") for _ in range(50)))
        await caller.result(answers[0].run_id)
    assert len({answer.run_id for answer in answers}) == 1
    assert [answer.is_cached for answer in answers].count(False) == 1
    assert calls == [answers[0].run_id]
