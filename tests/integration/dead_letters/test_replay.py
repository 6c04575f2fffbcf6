"""Dead letters and replay on the real stack."""

import uuid
from datetime import timedelta

from pydantic import BaseModel

from redrive import STEP, ModuleContext, NoJitter, Pipeline, Registry, RunStatus, Terminal
from redrive.dead_letters import Answer, LetterId, Verb
from tests.conftest import Running, WorkerFactory, eventually


class N(BaseModel):
    n: int


class Switch:
    """A service that works or not."""

    def __init__(self) -> None:
        self.works = False
        self.calls: list[tuple[str, int]] = []


def three_steps(registry: Registry, switch: Switch) -> None:
    policy = STEP.model_copy(update={"base": timedelta(milliseconds=20), "jitter": NoJitter(), "max_attempts": 2})

    @registry.module("first", policy=policy)
    async def first(ctx: ModuleContext, given: N) -> N:
        switch.calls.append(("first", given.n))
        return N(n=given.n + 1)

    @registry.module("second", policy=policy)
    async def second(ctx: ModuleContext, given: N) -> N:
        switch.calls.append(("second", given.n))
        if not switch.works:
            raise Terminal("the service is broken")
        return N(n=given.n + 1)

    @registry.module("third", policy=policy)
    async def third(ctx: ModuleContext, given: N) -> N:
        switch.calls.append(("third", given.n))
        return N(n=given.n + 1)

    Pipeline("three", first, second, third, registry=registry)


async def parked(running: Running, run_id: str) -> None:
    async def is_parked() -> bool:
        return (await running.redrive.status(run_id)).status is RunStatus.DLQ_PENDING

    await eventually(is_parked)


async def order(running: Running, run_id: str, step: str, verb: Verb, **fields: object) -> Answer:
    letter = LetterId(tenant="default", run_id=run_id, step=step)
    handle = running.temporal.get_workflow_handle(letter.workflow_id)
    message = {"request_id": uuid.uuid4().hex, "requested_by": "ada", "reason": "fixed"} | fields
    answer: Answer = await handle.execute_update(verb, message, result_type=Answer)
    return answer


async def test_replay_takes_the_same_run_to_success(worker: WorkerFactory, registry: Registry) -> None:
    """A parked run goes on in place when its step is replayed."""
    switch = Switch()
    three_steps(registry, switch)
    async with worker() as running:
        started = await running.redrive.start("three", {"n": 1})
        await parked(running, started.run_id)
        switch.works = True
        answer = await order(running, started.run_id, "second", Verb.REPLAY)
        assert answer.accepted, answer
        result = await running.redrive.result(started.run_id)
    assert result.status is RunStatus.SUCCESS
    assert [name for name, _ in switch.calls] == ["first", "second", "second", "third"]
