"""Steps that call a service over real HTTP: Retry-After, the 409 rule and the idempotency key."""

import time
from datetime import timedelta

import pytest
from pydantic import BaseModel

from redrive import Category, ModuleContext, Pipeline, Registry, RunStatus
from redrive.settings import ServiceSettings
from tests.conftest import WorkerFactory
from tests.integration.runs.samples import milliseconds, quick, run_until_settled
from tests.unit.redrive.conftest import Server, hang, reply


class Charge(BaseModel):
    """What is asked of the service."""

    amount: int = 1


class Charged(BaseModel):
    """What it answers."""

    id: str = ""


@pytest.fixture
def charging(registry: Registry, server: Server) -> Server:
    """A pipeline `p` whose step posts a charge to the server."""
    policy = quick(max_attempts=3, base=milliseconds(1), retry_after_cap=2)

    @registry.module("charge", policy=policy)
    async def charge(ctx: ModuleContext, given: Charge) -> Charged:
        shop = ctx.http.service("shop")
        answer = await shop.post("/charges", operation="charge", json=given.model_dump(), timeout=timedelta(seconds=2))
        return Charged(id=str(answer.status))

    @registry.module("create", policy=policy)
    async def create(ctx: ModuleContext, given: Charge) -> Charged:
        shop = ctx.http.service("shop")
        answer = await shop.post("/charges", operation="create", json=given.model_dump(), create_if_absent=True)
        return Charged(id=str(answer.status))

    Pipeline("p", charge, registry=registry)
    Pipeline("create", create, registry=registry)
    return server


def services(server: Server) -> dict[str, ServiceSettings]:
    """The settings under which the server is the shop."""
    return {"shop": ServiceSettings(base_url=server.url)}


async def test_retry_after_in_seconds_is_obeyed(worker: WorkerFactory, charging: Server) -> None:
    """After a 429 with `Retry-After: 1` the next try comes after one second, though the curve says one millisecond."""
    charging.on("/charges", reply(429, retry_after="1"), reply(201, {"id": "c"}))
    began = time.monotonic()
    async with worker(services=services(charging)) as running:
        view = await run_until_settled(running.redrive, "p")
    assert view.status is RunStatus.SUCCESS
    (entry,) = view.steps[0].attempts
    assert (entry.category, entry.delay) == (Category.RATE_LIMIT, timedelta(seconds=1))
    assert time.monotonic() - began >= 1
    assert len(charging.received) == 2


async def test_retry_after_is_capped(worker: WorkerFactory, charging: Server) -> None:
    """A service that asks for a day is obeyed for `retry_after_cap` only."""
    charging.on("/charges", reply(503, retry_after="86400"), reply(201, {"id": "c"}))
    async with worker(services=services(charging)) as running:
        view = await run_until_settled(running.redrive, "p")
    assert view.status is RunStatus.SUCCESS
    assert [entry.delay for entry in view.steps[0].attempts] == [timedelta(seconds=2)]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_refusal_is_tried_once(worker: WorkerFactory, charging: Server, status: int) -> None:
    """A 4xx answer ends the attempts, and the failure tells status and text."""
    charging.on("/charges", reply(status, {"problem": "amount"}))
    async with worker(services=services(charging)) as running:
        view = await run_until_settled(running.redrive, "p")
    assert len(charging.received) == 1
    failure = view.steps[0].failure
    assert failure is not None
    assert failure.category is Category.PROVIDER_4XX
    assert f"answered {status}" in failure.message
    assert "amount" in failure.message


async def test_a_conflict_is_a_failure_that_is_tried_once(worker: WorkerFactory, charging: Server) -> None:
    """A 409 to an ordinary call is category `conflict`, and terminal."""
    charging.on("/charges", reply(409))
    async with worker(services=services(charging)) as running:
        view = await run_until_settled(running.redrive, "p")
    assert len(charging.received) == 1
    failure = view.steps[0].failure
    assert failure is not None
    assert failure.category is Category.CONFLICT


async def test_a_conflict_is_a_success_where_the_call_creates_if_absent(
    worker: WorkerFactory, charging: Server
) -> None:
    """A 409 to a create-if-absent call means that the thing is there: the step succeeds after the failed first try."""
    charging.on("/charges", reply(502), reply(409))
    async with worker(services=services(charging)) as running:
        view = await run_until_settled(running.redrive, "create")
    assert view.status is RunStatus.SUCCESS
    assert view.steps[0].attempt == 2


async def test_every_attempt_sends_the_same_idempotency_key(worker: WorkerFactory, charging: Server) -> None:
    """Over a 500, a hang and a success the key and the request id stay what they were, and another run has others."""
    charging.on("/charges", reply(500), hang, reply(201, {"id": "c"}))
    async with worker(services=services(charging)) as running:
        view = await run_until_settled(running.redrive, "p")
        keys = {request.headers["idempotency-key"] for request in charging.received}
        other = await run_until_settled(running.redrive, "p")
    assert view.status is RunStatus.SUCCESS
    assert [entry.category for entry in view.steps[0].attempts] == [Category.PROVIDER_5XX, Category.TIMEOUT]
    assert keys == {f"{view.run_id}:charge:charge"}
    assert charging.received[-1].headers["idempotency-key"] == f"{other.run_id}:charge:charge"
    assert {request.headers["x-request-id"] for request in charging.received} == {view.run_id, other.run_id}
