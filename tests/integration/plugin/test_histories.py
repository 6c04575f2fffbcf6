"""Histories with and without the plugin. To store the parked ones again: `REDRIVE_RECORD=1`."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.worker import Replayer

from redrive.plugin import DeadLetters
from redrive.starter.stack.state import StackInfo
from tests.histories.record import scrubbed
from tests.integration.plugin import project
from tests.integration.plugin.conftest import ProjectFactory
from tests.integration.plugin.lab import Project, running

STORED = Path(__file__).parent / "histories"
# What differs between any two runs of one workflow.
VARYING = {
    "eventTime",
    "taskId",
    "identity",
    "requestId",
    "workflowId",
    "originalExecutionRunId",
    "runId",
    "historySizeBytes",
    "workerVersion",
    "sdkMetadata",
    "meteringMetadata",
    "workflowTaskStartedEventId",
    "taskQueue",
    "binaryChecksum",
    "details",  # of a local activity's marker: when it ran
    "firstExecutionRunId",
}


def shape(value: Any) -> Any:
    """Return an event without what differs between any two runs."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items() if name not in VARYING}
    return [shape(item) for item in value] if isinstance(value, list) else value


async def events(handle: WorkflowHandle[Any, Any]) -> list[Any]:
    """Return the events of a workflow without what differs between any two runs."""
    return [shape(MessageToDict(event)) for event in (await handle.fetch_history()).events]


@pytest.fixture
async def plain(stack: StackInfo) -> Client:
    """A client of people who do not have the plugin."""
    return await Client.connect(stack.temporal_address)


async def test_happy_histories_are_equal_event_by_event(users: Project, plain: Client) -> None:
    """What does not fail costs nothing."""
    orders: list[tuple[Any, list[Any]]] = [
        (project.OrderWorkflow.run, [users.order()]),
        (project.LocalWorkflow.run, [users.order()]),
    ]
    orders += [(project.ParentWorkflow.run, [users.order()])]
    async with project.plain_worker(plain, f"{users.queue}-plain"):
        for run, arguments in orders:
            with_it = await users.start(run, *arguments, id=f"with-{users.case}")
            result = await with_it.result()
            without: WorkflowHandle[Any, Any] = await plain.start_workflow(
                run, args=arguments, id=f"without-{users.case}", task_queue=f"{users.queue}-plain"
            )
            assert result == await without.result()
            assert await events(with_it) == await events(without)


async def test_a_first_park_adds_three_events(users: Project) -> None:
    """A marker of the version, its search attribute, and the marker of the report."""
    users.broken("charge")
    handle = await users.start(project.OrderWorkflow.run, users.order())
    await users.parked(handle)
    kinds = [event["eventType"] for event in await events(handle)]
    after = kinds[kinds.index("EVENT_TYPE_ACTIVITY_TASK_FAILED") + 1 :]
    added = [kind for kind in after if "WORKFLOW_TASK" not in kind]
    assert added == [
        "EVENT_TYPE_MARKER_RECORDED",
        "EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES",
        "EVENT_TYPE_MARKER_RECORDED",
    ]
    await handle.terminate()


@pytest.mark.parametrize("name", ["replayed", "edited", "resolved", "discarded", "local", "child", "parallel", "whole"])
async def test_stored_histories_replay(name: str) -> None:
    """Parked and replayed workflows of earlier releases go on with this one."""
    history = WorkflowHistory.from_json("stored", (STORED / f"{name}.json").read_text())
    plugin = DeadLetters(["*"], whole_workflows=name == "whole")
    await Replayer(workflows=project.WORKFLOWS, plugins=[plugin]).replay_workflow(history)


@pytest.mark.skipif("REDRIVE_RECORD" not in os.environ, reason="stores histories anew")
async def test_record(new_project: ProjectFactory) -> None:
    """Store the histories of workflows that were parked."""
    order = project.OrderWorkflow.run
    cases: dict[str, tuple[Any, str, dict[str, Any]]] = {
        "replayed": (order, "replay", {}),
        "edited": (order, "replay", {"input_patch": {"amount": 7}, "policy": {"max_attempts": 2}}),
        "resolved": (order, "resolve", {"output": {"id": "x", "amount": 5}}),
        "discarded": (order, "discard", {}),
        "local": (project.LocalWorkflow.run, "replay", {}),
        "child": (project.ParentWorkflow.run, "replay", {}),
        "parallel": (project.ParallelWorkflow.run, "replay", {}),
        "whole": (project.WholeWorkflow.run, "replay", {"input_patch": {"amount": 7}}),
    }
    STORED.mkdir(exist_ok=True)
    for name, (run, verb, fields) in cases.items():
        async with running(await new_project(whole_workflows=name == "whole")) as users:
            users.broken("charge", "ship-1", "ship-2")
            arguments = [users.case, 3] if name == "parallel" else [users.order(-1)]
            handle = await users.start(run, *arguments)
            letters = await users.parked(handle, 2 if name == "parallel" else 1)
            users.broken()
            for letter in letters:
                assert (await users.command(letter, verb, **fields)).accepted
            await asyncio.gather(handle.result(follow_runs=False), return_exceptions=True)
            first = users.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
            (STORED / f"{name}.json").write_text(scrubbed((await first.fetch_history()).to_json()))
