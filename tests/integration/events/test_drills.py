"""The drills of the plan that need a service: stop it, break its token; nothing is half done without a record."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from pydantic import BaseModel, SecretStr
from temporalio.client import Client

from redrive import STEP, Category, Event, ModuleContext, NoJitter, Pipeline, Registry, RunStatus
from redrive.bridges.events.replays import EventReplays
from redrive.dead_letters import LetterFilter, LetterStatus, Replay
from redrive.settings import ServiceSettings, Settings
from redrive.store.dead_letters.lists import list_letters
from redrive.store.events.records import EventRow
from redrive.worker import running_worker
from tests.conftest import eventually
from tests.integration.events.event_lab import EventLab
from tests.integration.events.valkey import Valkey
from tests.unit.redrive.conftest import Server, reply, reset, server

__all__ = ["server"]
QUICK = STEP.model_copy(update={"base": timedelta(milliseconds=20), "jitter": NoJitter(), "max_attempts": 3})
STATES = {"make-user": "succeeded", "make-repository": "failed"}


class Stack(BaseModel):
    """Whose stack is to be made."""

    user: str


class Given(BaseModel):
    event: Event[Stack]


class Made(BaseModel):
    status: int


@pytest.fixture
async def lab(
    valkey: Valkey, settings: Settings, temporal: Client, registry: Registry, server: Server
) -> AsyncIterator[EventLab]:
    """A stack is made of a user and a repository, both on the same service."""

    async def make(ctx: ModuleContext, given: Given) -> Made:
        path = f"/{ctx.step}"
        answer = await ctx.http.service("git").post(path, operation="make", json=given.event.payload.model_dump())
        return Made(status=answer.status)

    modules = [registry.module(name, policy=QUICK)(make) for name in STATES]
    Pipeline("stack-wanted", *modules, registry=registry)
    settings.services["git"] = ServiceSettings(base_url=server.url, token=SecretStr("t0ken"))
    lab = EventLab(valkey, settings, temporal, registry)
    async with running_worker(settings, registry), lab.database, lab.bridge():
        yield lab
    settings.services.clear()


async def _failed(lab: EventLab) -> EventRow | None:
    """Return the only event once its second projector has failed."""
    for event in await lab.stored():
        if {name: record.status.value for name, record in (await lab.projections(event.id)).items()} == STATES:
            return event
    return None


async def _replay(lab: EventLab, temporal: Client, event: EventRow) -> None:
    replays = EventReplays(temporal, lab.settings.task_queue, lab.redrive, lab.database, lab.intake)
    command = Replay(request_id=f"mended-{event.id}", requested_by="ada", reason="mended")
    (answer,) = await replays.event(lab.tenant, event.id, [], command)
    assert answer.accepted, answer.message
    assert (await lab.redrive.result(event.run_id)).status is RunStatus.SUCCESS
    records = await lab.projections(event.id)
    assert {record.status.value for record in records.values()} == {"succeeded"}


async def test_broken_token_is_classified_and_leaves_nothing_untracked(
    lab: EventLab, temporal: Client, server: Server
) -> None:
    """Drill 3: what was done is recorded as done, what was refused as a dead letter; a new token goes on from there."""
    server.on("/make-user", reply(201, {}))
    server.on("/make-repository", reply(401, {"error": "bad token"}), reply(201, {}))
    await lab.emit("stack:ada", type_="stack.wanted", user="ada")
    event = await eventually(lambda: _failed(lab))
    page = await list_letters(await lab.database.pool(), LetterFilter(tenant=lab.tenant))
    (letter,) = page.rows
    assert (letter.status, letter.category, letter.attempt_count) == (LetterStatus.PENDING, Category.PROVIDER_4XX, 1)
    assert letter.idempotency_key == event.dedupe_key
    assert (await lab.redrive.status(event.run_id)).status is RunStatus.DLQ_PENDING
    await _replay(lab, temporal, event)
    calls = [(request.target, request.headers["idempotency-key"]) for request in server.received]
    key = f"{event.run_id}:make-repository:make"
    assert calls[1:] == [("/make-repository", key), ("/make-repository", key)]
    assert [target for target, _ in calls].count("/make-user") == 1


async def test_stopped_service_is_retried_then_dead_lettered(lab: EventLab, temporal: Client, server: Server) -> None:
    """Drill 1: a service that is away is asked as often as the policy says, then an operator is; then it goes on."""
    server.on("/make-user", reply(503), reply(201, {}))
    server.on("/make-repository", reset, reset, reset, reply(201, {}))
    await lab.emit("stack:grace", type_="stack.wanted", user="grace")
    event = await eventually(lambda: _failed(lab))
    records = await lab.projections(event.id)
    assert (records["make-user"].attempt, records["make-repository"].attempt) == (2, 3)
    page = await list_letters(await lab.database.pool(), LetterFilter(tenant=lab.tenant))
    assert page.rows[0].category is Category.NETWORK
    await _replay(lab, temporal, event)
    assert [request.target for request in server.received].count("/make-repository") == 4
