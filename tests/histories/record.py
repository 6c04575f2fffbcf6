"""Record the stored histories: `python -m tests.histories.record`, in a fresh server of its own.

Record a history anew only when it can no longer happen. A change of workflow code that fails the replay of an old one
needs `workflow.patched`, and a new history beside the old.
"""

import asyncio
import base64
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from redrive import ModuleContext, Pipeline, Redrive, Registry, StepStatus, Terminal, Transient
from redrive.contracts import SearchAttribute
from redrive.modules import Module
from redrive.settings import Settings
from starter.stack.temporal_server import find_temporal
from tests.conftest import eventually
from tests.integration.runs.samples import Number, ended, milliseconds, quick
from worker import running_worker

HERE = Path(__file__).parent
TASK_QUEUE = "histories"
# Few enough for eight short steps to be "long".
EVENTS_BEFORE_CONTINUE = 30
MACHINE = re.compile(r"^\d+@.*")
DIRECTORIES_OF_A_FILE = re.compile(rb"/(?:[\w.+-]+/)+(?=[\w-]+\.py)")


class Waiting(BaseModel):
    """Nothing to read."""


def _registry() -> Registry:
    registry = Registry()

    def add(name: str) -> Module[Number, Number]:
        @registry.module(name, policy=quick(base=milliseconds(10)))
        async def count(ctx: ModuleContext, given: Number) -> Number:
            return Number(n=given.n + 1)

        return count

    @registry.module("flaky", policy=quick(base=milliseconds(10)))
    async def flaky(ctx: ModuleContext, given: Number) -> Number:
        if ctx.attempt < 3:
            raise Transient(f"try {ctx.attempt}")
        return given

    @registry.module("hopeless")
    async def hopeless(ctx: ModuleContext, given: Number) -> Number:
        raise Terminal("it cannot work")

    @registry.module("patient", policy=quick(base=milliseconds(60_000), cap=milliseconds(60_000)))
    async def patient(ctx: ModuleContext, given: Waiting) -> Number:
        raise Transient("later")

    steps = [add(f"count-{number}") for number in range(1, 9)]
    Pipeline("three", *steps[:3], registry=registry)
    Pipeline("healing", steps[0], flaky, steps[1], registry=registry)
    Pipeline("failing", steps[0], hopeless, steps[1], registry=registry)
    Pipeline("waiting", steps[0], patient, steps[1], registry=registry)
    Pipeline("long", *steps, registry=registry)
    return registry


async def _run(redrive: Redrive, pipeline: str) -> str:
    started = await redrive.start(pipeline, {"n": 1}, key=f"history-of-{pipeline}")
    await ended(redrive, started.run_id)
    return started.run_id


async def _canceled(redrive: Redrive, _client: Client) -> str:
    started = await redrive.start("waiting", {"n": 1}, key="history-of-waiting")

    async def waits() -> bool:
        return any(step.status is StepStatus.RETRYING for step in (await redrive.status(started.run_id)).steps)

    await eventually(waits)
    await redrive.cancel(started.run_id, reason="enough")
    await ended(redrive, started.run_id)
    return started.run_id


async def _by_name(redrive: Redrive, client: Client) -> str:
    order = {"pipeline": "three", "payload": {"n": 1}}
    await client.start_workflow("ModuleRun", order, id="run-by-name", task_queue=TASK_QUEUE)
    await ended(redrive, "run-by-name")
    return "run-by-name"


Scene = Callable[[Redrive, Client], Awaitable[str]]
SCENES: dict[str, Scene] = {
    "three_steps": lambda redrive, _: _run(redrive, "three"),
    "healed": lambda redrive, _: _run(redrive, "healing"),
    "failed": lambda redrive, _: _run(redrive, "failing"),
    "canceled": _canceled,
    "started_by_name": _by_name,
    "continued": lambda redrive, _: _run(redrive, "long"),
}


@contextlib.asynccontextmanager
async def _server() -> AsyncIterator[Client]:
    suggestion = f"limit.historyCount.suggestContinueAsNew={EVENTS_BEFORE_CONTINUE}"
    environment = await WorkflowEnvironment.start_local(
        data_converter=pydantic_data_converter,
        dev_server_existing_path=str(find_temporal()),
        dev_server_extra_args=["--dynamic-config-value", suggestion],
        search_attributes=[SearchAttributeKey.for_keyword(name) for name in SearchAttribute],
    )
    async with environment:
        yield environment.client


async def _histories(client: Client, run_id: str) -> list[str]:
    """Return the histories of all parts of a run, first to last."""
    parts: list[str] = []
    description = await client.get_workflow_handle(run_id).describe()
    execution: str | None = description.raw_description.workflow_execution_info.first_run_id
    while execution:
        history = await client.get_workflow_handle(run_id, run_id=execution).fetch_history()
        parts.append(history.to_json())
        last = history.events[-1]
        execution = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id or None
    return parts


def scrubbed(text: str) -> str:
    """Return a history without the names of the machine and of its directories."""
    return json.dumps(_without_identity(json.loads(text)), indent=1) + "\n"


def _without_identity(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_identity(inner) for inner in value]
    if isinstance(value, dict):
        return {name: _scrubbed_member(name, inner) for name, inner in value.items()}
    return MACHINE.sub("worker", value) if isinstance(value, str) else value


def _scrubbed_member(name: str, value: Any) -> Any:
    match name:
        case "identity":
            return "redrive"
        case "stackTrace":
            return ""
        case "data" if isinstance(value, str):
            return base64.b64encode(DIRECTORIES_OF_A_FILE.sub(b"", base64.b64decode(value))).decode()
        case _:
            return _without_identity(value)


async def main() -> None:
    """Write all histories."""
    async with _server() as client:
        settings = Settings(temporal_address=client.service_client.config.target_host, task_queue=TASK_QUEUE)
        registry = _registry()
        async with running_worker(settings, registry):
            redrive = Redrive(client, task_queue=TASK_QUEUE, registry=registry)
            for name, scene in SCENES.items():
                parts = await _histories(client, await scene(redrive, client))
                for number, part in enumerate(parts, 1):
                    file = HERE / (f"{name}.json" if len(parts) == 1 else f"{name}_{number}.json")
                    file.write_text(scrubbed(part))
                    print(file.name)


if __name__ == "__main__":
    asyncio.run(main())
