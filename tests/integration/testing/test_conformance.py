"""Runs in memory and on a server go the same way: what decides is one code."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from redrive import STEP, Category, Curve, ModuleContext, NoJitter, Pipeline, Registry, Resource, Terminal, Transient
from redrive.dead_letters import Mode
from redrive.errors import CommandRefused
from redrive.testing import FakeServices, Faults, Run, Server, run_pipeline

STEADY = STEP.model_copy(
    update={
        "jitter": NoJitter(),
        "per_category": {Category.RATE_LIMIT: Curve(base=timedelta(hours=1), cap=timedelta(hours=1), max_attempts=2)},
    }
)


class Order(BaseModel):
    """An order."""

    order: str
    amount: int


class Charge(BaseModel):
    """A charge."""

    id: str
    total: int


class Charged(BaseModel):
    """What shipping reads."""

    order: str
    charge: Charge


class Label(BaseModel):
    """A label."""

    text: str


async def _pool() -> AsyncIterator[list[str]]:
    yield []


POOL = Resource(_pool)


def shop() -> Pipeline:
    """Return a pipeline with an async module that calls and counts, and a plain one that is run once."""
    registry = Registry()

    @registry.module("charge", policy=STEADY)
    async def charge(ctx: ModuleContext, given: Order) -> Charge:
        answer = await ctx.http.service("payments").post("/charges", operation="charge", json=given)
        ctx.resource(POOL).append(f"{ctx.step} {ctx.attempt}")
        return Charge(id=answer.json()["id"], total=await ctx.counters.add("charges", given.amount) or 0)

    @registry.module("ship", policy=STEADY, dedupe=True)
    def ship(ctx: ModuleContext, given: Charged) -> Label:
        if given.order == "bad":
            raise KeyError("address")
        return Label(text=f"{given.order} {given.charge.id} {ctx.idempotency_key} {ctx.tenant} {ctx.labels}")

    return Pipeline("shop", charge, ship, registry=registry)


def answer_charges(services: FakeServices) -> None:
    """Answer what the scenario has left unanswered."""
    services.answer("POST", "/charges", json={"id": "ch-1"})


Start = Callable[..., Awaitable[Run]]
Scenario = Callable[[Start, FakeServices, Faults], Awaitable[Run]]


async def happy(start: Start, services: FakeServices, faults: Faults) -> Run:
    """Nothing fails."""
    return await start(tenant="acme", labels={"mission": "42"}, user_id="ada")


async def retried(start: Start, services: FakeServices, faults: Faults) -> Run:
    """Some attempts fail before their work, one after it, and one is refused."""
    services.answer("POST", "/charges", status=502, times=1)
    faults.fail("charge")
    faults.fail("charge", after=True)
    faults.fail("ship", times=2, error=Transient("later", retry_after=timedelta(minutes=9)))
    return await start()


async def exhausted(start: Start, services: FakeServices, faults: Faults) -> Run:
    """A category has a budget of its own."""
    services.answer("POST", "/charges", status=429)
    return await start()


async def edited(start: Start, services: FakeServices, faults: Faults) -> Run:
    """A replay is refused, then accepted with an edit and another policy."""
    faults.fail("charge", error=Terminal("declined"))
    faults.fail("charge", times=2)
    run = await start()
    with pytest.raises(CommandRefused, match="the edited input does not fit 'charge'"):
        await run.replay(input_patch={"amount": None})
    with pytest.raises(CommandRefused, match="policy: "):
        await run.replay(policy={"max_attempts": 0})
    with pytest.raises(CommandRefused, match="only a PARTIAL run can continue"):
        await run.continue_()
    await run.replay(input_patch={"amount": 9}, policy={"max_attempts": 3})
    return run


async def sent_back(start: Start, services: FakeServices, faults: Faults) -> Run:
    """An error that nobody expected; a replay of the step alone, then the rest."""
    run = await start(order="bad")
    await run.replay(from_step="charge")
    with pytest.raises(CommandRefused, match="does not fit what 'ship' returns"):
        await run.resolve({"words": 1})
    await run.replay(input_patch={"order": "good"}, mode=Mode.STEP_ONLY)
    return run


async def stepped(start: Start, services: FakeServices, faults: Faults) -> Run:
    """The dead step alone, then `continue`."""
    faults.fail("charge", error=Terminal("declined"))
    run = await start()
    await run.replay(mode=Mode.STEP_ONLY)
    await run.continue_()
    return run


async def resolved(start: Start, services: FakeServices, faults: Faults) -> Run:
    """An operator gives the output."""
    faults.fail("charge", error=Terminal("declined"))
    run = await start()
    await run.resolve({"id": "by-hand", "total": 1})
    return run


async def discarded(start: Start, services: FakeServices, faults: Faults) -> Run:
    """An operator gives up; a command after that is refused."""
    faults.fail("ship", error=Terminal("no stock"))
    run = await start()
    await run.discard()
    with pytest.raises(CommandRefused, match="the run is FAILED"):
        await run.replay()
    return run


def facts(run: Run, services: FakeServices, faults: Faults, pool: list[str]) -> dict[str, Any]:
    """Return all that must be the same: everything but times."""
    steps = [(step.name, step.status, step.cycle, step.attempt, _attempts(step.attempts)) for step in run.view.steps]
    failures = {name: (f.category, f.message, f.error_type, f.cycle) for name, f in run.failures.items()}
    return {
        "status": (run.status, run.error, run.parked_at),
        "steps": steps,
        "outputs": run.outputs,
        "failures": failures,
        "calls": [(str(call), call.key, call.json, call.headers.get("x-redrive-user")) for call in services.calls],
        "left": faults.left,
        "pool": pool,
    }


def _attempts(attempts: list[Any]) -> list[Any]:
    return [(entry.attempt, entry.category, entry.error_type, entry.error, entry.delay) for entry in attempts]


SCENARIOS: list[Scenario] = [happy, retried, exhausted, edited, sent_back, stepped, resolved, discarded]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_memory_and_server_agree(scenario: Scenario) -> None:
    """Statuses, attempts, delays, categories, messages, keys, outputs and refusals are the same."""

    async def in_memory(world: dict[str, Any]) -> Run:
        async def start(order: str = "o-1", **options: Any) -> Run:
            answer_charges(world["services"])
            return await run_pipeline(shop(), {"order": order, "amount": 5}, **world, **options)

        return await scenario(start, world["services"], world["faults"])

    async def on_server(world: dict[str, Any]) -> Run:
        async with Server.start(**world, time_skipping=True) as server:

            async def start(order: str = "o-1", **options: Any) -> Run:
                answer_charges(world["services"])
                given = {"run_id": "test-run", **options}
                return await server.run_pipeline(shop(), {"order": order, "amount": 5}, **given)

            return await scenario(start, world["services"], world["faults"])

    seen = []
    for play in (in_memory, on_server):
        pool: list[str] = []
        world = {"services": FakeServices(), "faults": Faults(), "resources": {POOL: pool}}
        run = await play(world)
        seen.append(facts(run, world["services"], world["faults"], pool))  # type: ignore[arg-type]
    assert seen[0] == seen[1]
