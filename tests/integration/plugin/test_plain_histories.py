"""Histories that were recorded without the plugin replay with it. To store them again: `REDRIVE_RECORD=1`."""

import asyncio
import os
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.worker import Replayer, Worker

from redrive.plugin import DeadLetters
from redrive.starter.stack.state import StackInfo
from tests.conftest import eventually
from tests.histories.record import scrubbed
from tests.integration.plugin import project
from tests.integration.plugin.conftest import ProjectFactory
from tests.integration.plugin.lab import Project
from tests.integration.plugin.test_histories import STORED, events

CORPUS = STORED / "without_plugin"
# What ends in one workflow task, and the event of each end.
RACES = {
    "activity_timer": {"activity": "ACTIVITY_TASK_COMPLETED", "timer": "TIMER_FIRED"},
    "failing_timer": {"failing": "ACTIVITY_TASK_FAILED", "timer": "TIMER_FIRED"},
    "timer_failing": {"timer": "TIMER_FIRED", "failing": "ACTIVITY_TASK_FAILED"},
    "child_signal": {"child": "CHILD_WORKFLOW_EXECUTION_FAILED", "signal": "WORKFLOW_EXECUTION_SIGNALED"},
    "all": {
        "activity": "ACTIVITY_TASK_COMPLETED",
        "failing": "ACTIVITY_TASK_FAILED",
        "child": "CHILD_WORKFLOW_EXECUTION_FAILED",
        "timer": "TIMER_FIRED",
        "signal": "WORKFLOW_EXECUTION_SIGNALED",
    },
}
STARTED = {
    "activity": "ACTIVITY_TASK_SCHEDULED",
    "failing": "ACTIVITY_TASK_SCHEDULED",
    "child": "CHILD_WORKFLOW_EXECUTION_STARTED",
    "timer": "TIMER_STARTED",
}


@pytest.fixture
async def plain(stack: StackInfo) -> Client:
    """A client of people who do not have the plugin."""
    return await Client.connect(stack.temporal_address)


async def test_stored_histories_replay() -> None:
    """Plain code, races of all kinds in one workflow task, failures that were raised."""
    paths = sorted(CORPUS.glob("*.json"))
    assert len(paths) == 8 + len(RACES)
    replayer = Replayer(
        workflows=project.WORKFLOWS, plugins=[DeadLetters(["*"], whole_workflows=True)], build_id="tests"
    )
    for path in paths:
        await replayer.replay_workflow(WorkflowHistory.from_json(path.stem, path.read_text()))


@pytest.mark.long
async def test_fresh_histories_replay(users: Project, plain: Client) -> None:
    """Those that today's SDK and server record."""
    for handle in (await recorded(users, plain)).values():
        await users.replays(handle)


@pytest.mark.skipif("REDRIVE_RECORD" not in os.environ, reason="stores histories anew")
async def test_record(new_project: ProjectFactory, plain: Client) -> None:
    """Store the histories."""
    users = await new_project()
    handles = await recorded(users, plain)
    users.broken("charge")
    for name, race in RACES.items():
        handles[f"first_{name}"] = await raced_in_one_task(users, plain, race)
    CORPUS.mkdir(exist_ok=True)
    for name, handle in handles.items():
        (CORPUS / f"{name}.json").write_text(scrubbed((await handle.fetch_history()).to_json()))


async def raced_in_one_task(users: Project, plain: Client, race: dict[str, str]) -> WorkflowHandle[Any, Any]:
    """Let all of a race end while no worker has the workflow."""
    queue = f"{users.queue}-{'-'.join(race)}"
    handle: WorkflowHandle[Any, Any] = await plain.start_workflow(
        project.FirstWorkflow.run, args=[users.order(), list(race)], id=f"first-{queue}", task_queue=queue
    )
    started = [STARTED[name] for name in race if name in STARTED]
    async with Worker(plain, task_queue=queue, workflows=project.WORKFLOWS, build_id="tests"):
        for kind in started:
            await eventually(lambda kind=kind: _has(handle, kind, started.count(kind)))  # type: ignore[misc]
    if "signal" in race:
        await handle.signal(project.FirstWorkflow.go)
    activities = Worker(plain, task_queue=queue, activities=project.ACTIVITIES, build_id="tests")
    async with activities, project.plain_worker(plain, f"{queue}-child"):
        for kind in race.values():
            await eventually(lambda kind=kind: _has(handle, kind), within=60)  # type: ignore[misc]
    async with project.plain_worker(plain, queue), asyncio.timeout(60):
        assert await handle.result()
    return handle


async def recorded(users: Project, plain: Client) -> dict[str, WorkflowHandle[Any, Any]]:
    """Run workflows without the plugin: also races in one workflow task, and failures that were raised."""
    queue = f"{users.queue}-plain"

    async def start(run: Any, *arguments: Any) -> WorkflowHandle[Any, Any]:
        handle: WorkflowHandle[Any, Any] = await plain.start_workflow(
            run, args=arguments, id=f"{run.__qualname__}-{users.case}", task_queue=queue
        )
        return handle

    raced = await start(project.RacingWorkflow.run, users.case, [0.1, 0.2, 0.3])
    async with project.plain_worker(plain, queue):
        await eventually(lambda: _has(raced, "ACTIVITY_TASK_SCHEDULED"))
    # No worker has workflows until all activities and timers have ended: they race in one workflow task.
    async with Worker(plain, task_queue=queue, activities=project.ACTIVITIES, build_id="tests"):
        await eventually(lambda: _has(raced, "TIMER_FIRED", 3))
    async with project.plain_worker(plain, queue), asyncio.timeout(60):
        await raced.result()
    users.broken("charge", "ship-1")
    async with project.plain_worker(plain, queue):
        handles = {
            "racing": raced,
            "fallback": await start(project.FallbackWorkflow.run, users.order()),
            "plain": await start(project.PlainWorkflow.run, users.order()),
            "impatient": await start(project.ImpatientWorkflow.run, users.order()),
            "order": await start(project.OrderWorkflow.run, users.order()),
            "parallel": await start(project.ParallelWorkflow.run, users.case, 3),
            "parent": await start(project.ParentWorkflow.run, users.order()),
            "local": await start(project.LocalWorkflow.run, users.order()),
        }
        await asyncio.gather(*(handle.result() for handle in handles.values()), return_exceptions=True)
    return handles


async def _has(handle: WorkflowHandle[Any, Any], kind: str, count: int = 1) -> bool:
    return sum(kind in event["eventType"] for event in await events(handle)) >= count
