"""Secrets in errors do not reach what is stored."""

import pytest
from temporalio.api.history.v1 import HistoryEvent

from redrive import Category, ModuleContext, Pipeline, Registry, RunStatus, Transient
from redrive.settings import ServiceSettings
from tests.conftest import Running, WorkerFactory
from tests.integration.runs.samples import Number, milliseconds, quick, run_until_settled
from tests.unit.redrive.conftest import Server, reply

TOKEN = "sk_live_51HqFakeFakeFakeFake"


async def stored(running: Running, run_id: str) -> list[HistoryEvent]:
    """Return all that Temporal stores of a run."""
    history = await running.temporal.get_workflow_handle(run_id).fetch_history()
    return list(history.events)


@pytest.mark.parametrize(
    "text", [f"password={TOKEN}", f"Authorization: Bearer {TOKEN}", f"refused for {TOKEN}", f'{{"api_key": "{TOKEN}"}}']
)
async def test_a_secret_in_an_error_is_not_stored(worker: WorkerFactory, registry: Registry, text: str) -> None:
    """Neither message, stack, cause nor attempts of a failed run hold the token that the module's error held."""

    @registry.module("leaky", policy=quick(max_attempts=2, base=milliseconds(1)))
    async def leaky(ctx: ModuleContext, given: Number) -> Number:
        raise Transient(f"could not: {text}", category=Category.NETWORK) from ValueError(text)

    Pipeline("p", leaky, registry=registry)
    async with worker() as running:
        view = await run_until_settled(running.redrive, "p")
        events = await stored(running, view.run_id)
    assert view.status is RunStatus.DLQ_PENDING
    assert "[redacted]" in str(view.error)
    assert view.steps[0].failure is not None
    assert "leaky" in view.steps[0].failure.stack
    assert TOKEN not in view.model_dump_json()
    assert not [event for event in events if TOKEN.encode() in event.SerializeToString()]


async def test_a_services_token_is_not_stored_when_the_service_echoes_it(
    worker: WorkerFactory, registry: Registry, server: Server
) -> None:
    """A service that answers an error with our own authorization header in it does not get it into the history."""
    token = "tok-4f9a1c7be2"

    @registry.module("call", policy=quick(max_attempts=1))
    async def call(ctx: ModuleContext, given: Number) -> Number:
        await ctx.http.service("echo").post("/", operation="call", json={})
        return given

    Pipeline("p", call, registry=registry)
    server.on("/", reply(401, {"authorization": f"Bearer {token}"}))
    services = {"echo": ServiceSettings.model_validate({"base_url": server.url, "token": token})}
    async with worker(services=services) as running:
        view = await run_until_settled(running.redrive, "p")
        events = await stored(running, view.run_id)
    assert server.received[0].headers["authorization"] == f"Bearer {token}"
    assert "answered 401" in str(view.error)
    assert not [event for event in events if token.encode() in event.SerializeToString()]
