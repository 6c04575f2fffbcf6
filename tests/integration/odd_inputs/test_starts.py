"""Whatever a workflow is started with by hand, it begins or it fails with a sentence: no task is tried for ever."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from redrive.bridges.rabbitmq.settings import RetrySettings
from redrive.connection import database_url
from redrive.contracts import DEFAULT_TENANT, Workflow
from redrive.postgres.database import Database
from redrive.processes.rabbitmq_bridge import RabbitBridge
from redrive.settings import Settings
from redrive.worker import WORKFLOWS
from tests.conftest import WorkerFactory
from tests.hostile.documents import THINNED
from tests.integration.odd_inputs.documents import MALFORMED, NONE_AT_ALL

TAKE_NO_INPUT = {
    Workflow.ANCHOR_AUDIT,
    Workflow.DESCRIBE_MODULES,
    Workflow.EXPIRE_KEYS,
    Workflow.PROBE_SERVICES,
    Workflow.PURGE_RECORDS,
}


def sweep_worker(settings: Settings, client: Client) -> Worker:
    """Return the worker that the bridge makes."""
    retry = RetrySettings(service_name=f"odd-{uuid.uuid4().hex[:8]}", rabbitmq_url="amqp://127.0.0.1:1")
    return RabbitBridge(settings, retry, Database(database_url(settings)), DEFAULT_TENANT).sweep_worker(client)


@pytest.fixture
async def queues(worker: WorkerFactory, settings: Settings, temporal: Client) -> AsyncIterator[dict[str, str]]:
    """The task queue of each workflow type that any of our processes serves; all are served."""
    sweeps = sweep_worker(settings, temporal)
    async with contextlib.AsyncExitStack() as running:
        await running.enter_async_context(worker())
        await running.enter_async_context(sweeps)
        served = dict.fromkeys(map(name_of, WORKFLOWS), settings.task_queue)
        yield served | dict.fromkeys(map(name_of, sweeps.config()["workflows"]), sweeps.task_queue)


def name_of(kind: type) -> str:
    """Return the name that a workflow type is registered under."""
    return str(workflow._Definition.must_from_class(kind).name)


async def outcome(handle: WorkflowHandle[Any, Any]) -> str:
    """Return why a workflow failed, `done`, or `stuck`."""
    try:
        async with asyncio.timeout(120):
            await handle.result()
    except WorkflowFailureError as error:
        cause = error.cause
        return cause.message if isinstance(cause, ApplicationError) and cause.type == "validation" else repr(cause)
    except TimeoutError:
        return "stuck"
    return "done"


async def start(client: Client, kind: str, queue: str, arguments: list[RawValue]) -> WorkflowHandle[Any, Any]:
    """Start a workflow as `temporal workflow start` does."""
    return await client.start_workflow(kind, args=arguments, id=f"odd-{uuid.uuid4().hex}", task_queue=queue)


async def test_every_workflow_fails_with_a_sentence_on_what_it_cannot_read(
    queues: dict[str, str], temporal: Client
) -> None:
    """Every workflow type of all processes, by every malformed input: none is stuck, and each refusal says why.

    One in five of all pairs; `make hostile` starts all.
    """
    assert queues.keys() == set(Workflow)
    pairs = [
        (kind, what)
        for number, kind in enumerate(queues)
        for place, what in enumerate(MALFORMED)
        if (number + place) % THINNED == 0
    ]
    odd = [(kind, what) for kind, what in pairs if not (kind in TAKE_NO_INPUT and what in NONE_AT_ALL)]
    assert {kind for kind, _ in odd} == queues.keys()
    assert {what for _, what in odd} == MALFORMED.keys()
    handles = [await start(temporal, kind, queues[kind], MALFORMED[what]) for kind, what in odd]
    outcomes = dict(zip(odd, await asyncio.gather(*map(outcome, handles)), strict=True))
    words = ("input", "payload")
    assert {case: said for case, said in outcomes.items() if not any(word in said for word in words)} == {}


@pytest.mark.parametrize("what", sorted(NONE_AT_ALL))
async def test_a_workflow_that_takes_no_input_begins_without_one(
    queues: dict[str, str], temporal: Client, what: str
) -> None:
    """Nothing at all, and null, are no input."""
    kind = Workflow.DESCRIBE_MODULES
    assert await outcome(await start(temporal, kind, queues[kind], MALFORMED[what])) == "done"


@pytest.mark.parametrize(
    ("run_id", "sentence"),
    [
        ("line\nbreak", "holds the control character '\\n' at position 5"),
        (" outer space", "begins or ends with a space"),
        ("x" * 179, "has 179 characters; the id of a run has at most 178"),
    ],
    ids=["a line break", "an outer space", "too long"],
)
async def test_a_run_whose_id_cannot_be_sent_fails_with_a_sentence(
    queues: dict[str, str], temporal: Client, run_id: str, sentence: str
) -> None:
    """A run's id is a part of the headers of its calls: one that cannot be is refused before the first step."""
    kind = Workflow.MODULE_RUN
    given = {"pipeline": "good", "payload": {}}
    handle = await temporal.start_workflow(kind, given, id=run_id, task_queue=queues[kind])
    assert sentence in await outcome(handle)
