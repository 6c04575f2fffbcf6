"""The keys of a step's calls, and modules whose stored result answers a second execution."""

import asyncio
import json

import pytest
from pydantic import BaseModel, SecretStr

from redrive import ModuleContext, Pipeline, Redrive, Registry, RunStatus, Terminal, Transient
from redrive.dead_letters import LetterId
from redrive.postgres.tenancy import Pool
from redrive.settings import ServiceSettings
from redrive.store.runs import Execution, begin_step, finish_step
from tests.conftest import WorkerFactory, eventually
from tests.integration.dead_letters.sink import Sink
from tests.integration.runs.samples import Number, quick


class Paid(BaseModel):
    """What the service answered."""

    receipt: int


def add_paying_pipeline(registry: Registry, fails_after: set[int], *, dedupe: bool) -> None:
    """Add `pay`, which calls the service and dies after the given calls, and `late`, which always dies first."""
    calls = [0]

    @registry.module("pay", policy=quick(max_attempts=2), dedupe=dedupe)
    async def pay(ctx: ModuleContext, given: Number) -> Paid:
        await ctx.http.service("sink").post("pay", operation="charge", json={"n": given.n})
        calls[0] += 1
        if calls[0] in fails_after:
            raise Terminal("the answer was lost")
        return Paid(receipt=calls[0])

    Pipeline("paying", pay, registry=registry)


async def keys_of(sink: Sink) -> list[str]:
    """Return the idempotency keys that the service has seen, in order."""
    return [request.headers["idempotency-key"] for request in sink.received]


async def parked(redrive: Redrive, run_id: str) -> None:
    """Wait until a run is parked and its dead letter takes orders."""

    async def is_parked() -> bool:
        return (await redrive.status(run_id)).status is RunStatus.DLQ_PENDING

    await eventually(is_parked)


async def test_a_duplicate_command_does_not_call_the_service_twice(
    worker: WorkerFactory, registry: Registry, caller: Redrive, tenant: str
) -> None:
    """Started by many, before and after the end: the service is called once, with the step's key."""
    add_paying_pipeline(registry, set(), dedupe=False)
    async with Sink(status=200, answer="{}") as sink, worker(services=_services(sink)):
        answers = await asyncio.gather(*(caller.start("paying", {"n": 1}, tenant=tenant, key="k") for _ in range(10)))
        await caller.result(answers[0].run_id)
        again = await caller.start("paying", {"n": 1}, tenant=tenant, key="k")
        assert await keys_of(sink) == [f"{again.run_id}:pay:charge"]
    assert again.response == {"receipt": 1}


def _services(sink: Sink) -> dict[str, ServiceSettings]:
    return {"sink": ServiceSettings(base_url=sink.url, token=SecretStr("t"))}


async def test_a_steps_key_changes_with_an_edit_only(
    worker: WorkerFactory, registry: Registry, caller: Redrive, tenant: str
) -> None:
    """A replay sends the same key again; one with an edited input another, with a version part."""
    add_paying_pipeline(registry, {1, 2}, dedupe=False)
    async with Sink(status=200, answer="{}") as sink, worker(services=_services(sink)):
        started = await caller.start("paying", {"n": 1}, tenant=tenant)
        letter = LetterId(tenant=tenant, run_id=started.run_id, step="pay")
        await parked(caller, started.run_id)
        await caller.dead_letters.replay(letter, requested_by="ann", reason="again")

        async def second_call() -> bool:
            return len(sink.received) == 2

        await eventually(second_call)
        await parked(caller, started.run_id)

        async def edited() -> bool:
            answer = await caller.dead_letters.replay(letter, requested_by="ann", reason="edited", input_patch={"n": 2})
            return answer.accepted

        await eventually(edited)
        await caller.result(started.run_id)
        assert await keys_of(sink) == [*[f"{started.run_id}:pay:charge"] * 2, f"{started.run_id}:pay:charge:v2"]
        assert json.loads(sink.received[-1].body) == {"n": 2}


async def test_a_stored_result_answers_a_second_execution(
    worker: WorkerFactory, registry: Registry, caller: Redrive, tenant: str
) -> None:
    """A replay from an earlier step does not call the service of a module with `dedupe` again."""
    add_paying_pipeline(registry, set(), dedupe=True)
    broken = [True]

    @registry.module("ship")
    async def ship(ctx: ModuleContext, given: Number) -> Number:
        if broken[0]:
            raise Terminal("no parcels left")
        return given

    Pipeline("shop", registry.modules["pay"], ship, registry=registry)
    async with Sink(status=200, answer="{}") as sink, worker(services=_services(sink)):
        started = await caller.start("shop", {"n": 1}, tenant=tenant)
        await parked(caller, started.run_id)
        broken[0] = False
        letter = LetterId(tenant=tenant, run_id=started.run_id, step="ship")

        async def replayed() -> bool:
            answer = await caller.dead_letters.replay(letter, requested_by="ann", reason="again", from_step="pay")
            return answer.accepted

        await eventually(replayed)
        await caller.result(started.run_id)
        view = await caller.status(started.run_id)
        assert len(sink.received) == 1
    assert [step.cycle for step in view.steps] == [2, 2]


async def test_an_attempt_that_failed_after_its_effect_is_made_again_with_the_same_key(
    worker: WorkerFactory, registry: Registry, caller: Redrive, tenant: str
) -> None:
    """Nothing was stored, so the module runs again; the service sees one key and can tell."""
    seen: list[str] = []

    @registry.module("flaky", policy=quick(max_attempts=3), dedupe=True)
    async def flaky(ctx: ModuleContext, given: Number) -> Number:
        seen.append(ctx.idempotency_key)
        if len(seen) < 3:
            raise Transient("lost")
        return given

    Pipeline("p", flaky, registry=registry)
    async with worker():
        started = await caller.start("p", {}, tenant=tenant)
        await caller.result(started.run_id)
    assert seen == [f"{started.run_id}:flaky:run"] * 3


def execution(tenant: str, cycle: int, attempt: int) -> Execution:
    """One execution of a step."""
    return Execution(tenant, "run-1:pay:run", "run-1", "pay", cycle, attempt)


@pytest.mark.parametrize(("old", "new"), [((1, 1), (1, 2)), ((1, 4), (2, 1))], ids=["attempt", "cycle"])
async def test_a_zombie_cannot_overwrite_a_newer_result(
    pool: Pool, tenant: str, old: tuple[int, int], new: tuple[int, int]
) -> None:
    """An attempt that outlived its timeout writes nothing, whether the newer one is done or not."""
    zombie, newer = execution(tenant, *old), execution(tenant, *new)
    assert (await begin_step(pool, zombie)).may_run
    assert (await begin_step(pool, newer)).may_run
    early = await finish_step(pool, zombie, {"by": "zombie"})
    stored = await finish_step(pool, newer, {"by": "newer"})
    late = await finish_step(pool, zombie, {"by": "zombie"})
    third = await begin_step(pool, execution(tenant, 3, 1))
    assert not early.is_done
    assert [each.is_own for each in (early, stored, late)] == [False, True, False]
    assert (await begin_step(pool, zombie)).may_run is False
    assert [each.output for each in (stored, late, third)] == [{"by": "newer"}] * 3
    assert (third.is_done, third.may_run) == (True, False)
