"""Runs that somebody starts in the Temporal Web UI or with `temporal workflow start`: a type name and any input."""

import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel, field_validator
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowFailureError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from redrive import ModuleContext, Pipeline, Registry, RunStatus, StepStatus
from redrive.contracts import DEPTH_LIMIT, PAYLOAD_LIMIT
from tests.conftest import Running, WorkerFactory, eventually
from tests.integration.runs.samples import Number, add_good_pipeline, run_until_settled


class Picky(BaseModel):
    """An input whose own check is broken."""

    n: int = 0

    @field_validator("n")
    @classmethod
    def _broken(cls, value: int) -> int:
        raise KeyError(f"password=hunter2 {value}")


def add_pipelines(registry: Registry) -> None:
    """Register a good pipeline and one that cannot check its payload."""
    add_good_pipeline(registry)

    @registry.module("picky")
    async def picky(ctx: ModuleContext, given: Picky) -> Number:
        return Number()

    Pipeline("picky", picky, registry=registry)


async def start(running: Running, *arguments: Any) -> str:
    """Start a workflow as a stranger would, and return its id."""
    run_id = f"by-hand-{uuid.uuid4().hex}"
    await running.temporal.start_workflow(
        "ModuleRun", args=arguments, id=run_id, task_queue=running.settings.task_queue
    )
    return run_id


def raw(data: bytes, encoding: str = "json/plain") -> RawValue:
    """Return an argument with exactly these bytes."""
    return RawValue(Payload(metadata={"encoding": encoding.encode()}, data=data))


async def test_a_pipeline_and_a_payload_are_enough(worker: WorkerFactory, registry: Registry) -> None:
    """Steps are resolved by a recorded activity, the search attributes are set, and the run succeeds."""
    add_pipelines(registry)
    async with worker() as running:
        tenant = running.settings.task_queue
        run_id = await start(running, {"pipeline": "good", "payload": {"n": 1}, "tenant": tenant})
        result = await running.redrive.result(run_id)
        history = await running.temporal.get_workflow_handle(run_id).fetch_history()

        async def listed() -> list[str]:
            rows = running.redrive.list_runs(tenant=tenant, pipeline="good", status=RunStatus.SUCCESS)
            return [row.run_id async for row in rows]

        assert await eventually(listed) == [run_id]
    assert result.output == {"n": 2}
    assert [step.status for step in result.steps] == [StepStatus.SUCCESS]
    markers = [event for event in history.events if event.HasField("marker_recorded_event_attributes")]
    # The steps that the registry knows, and the report of the end.
    assert len(markers) == 2


def nested(levels: int) -> bytes:
    """Return a payload of so many levels, as text."""
    return b'{"pipeline":"good","payload":' + b'{"a":' * levels + b"1" + b"}" * levels + b"}"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([{"pipeline": "goood"}], "pipeline 'goood' is not known here; known: good, picky"),
        ([{"pipeline": "good", "payload": {"n": "many"}}], "payload does not fit 'good': n: "),
        ([{"pipeline": "good", "payload": [1]}], "payload: Input should be a valid dictionary"),
        ([{"payload": {}}], "pipeline: Field required"),
        ([{"pipeline": "good", "payloud": {}}], "payloud: Extra inputs are not permitted"),
        ([{"pipeline": "No Name"}], "pipeline: String should match pattern"),
        ([{"pipeline": "good", "steps": []}], "steps: List should have at least 1 item"),
        ([{"pipeline": "good", "correlation_id": "a\nb"}], "correlation_id: Value error, it is sent as an HTTP header"),
        ([{"pipeline": "good", "user_id": "ada "}], "user_id: Value error, it is sent as an HTTP header"),
        ([{"pipeline": "good", "state": {"steps": [{"name": "x"}]}}], "state: does not belong to the steps"),
        ([{"pipeline": "picky", "payload": {"n": 1}}], "payload cannot be checked: KeyError: "),
        (["good"], "input: Input should be "),
        ([], "the run's input"),
        ([None], "the run's input"),
        ([7], "input: Input should be "),
        ([raw(b"{not json")], "the run's input is not JSON: "),
        ([raw(b"\x00\xff\xfe", "binary/plain")], "the run's input is not JSON: "),
        ([raw(b"", "binary/null")], "the run's input is not JSON: "),
        ([raw(b'{"pipeline":"good","payload":{"n":NaN}}')], "the run's input is not JSON: "),
        ([raw(b'{"pipeline":"good","payload":{"a":"\\u0000"}}')], "payload.a: the character U+0000 cannot be stored"),
        ([raw(b'{"pipeline":"good","payload":{"a":"\\ud800"}}')], "the run's input is not JSON: "),
        ([raw(nested(DEPTH_LIMIT + 1))], "deeper than"),
        ([raw(nested(10_000))], "the run's input is not JSON: recursion limit exceeded"),
        ([{"pipeline": "good", "payload": {"a": "x" * PAYLOAD_LIMIT}}], f"the limit is {PAYLOAD_LIMIT}"),
    ],
    ids=[
        "unknown pipeline",
        "does not fit",
        "payload is a list",
        "no pipeline",
        "unknown field",
        "bad name",
        "no steps",
        "a line break in a header",
        "an outer space in a header",
        "foreign state",
        "broken validator",
        "a string",
        "no argument",
        "null",
        "a number",
        "garbage",
        "binary",
        "nothing",
        "NaN",
        "U+0000",
        "lone surrogate",
        "nested too deep",
        "nested 10,000 deep",
        "too large",
    ],
)
async def test_a_start_that_cannot_work_fails_the_run_with_a_sentence(
    worker: WorkerFactory, registry: Registry, arguments: Sequence[Any], sentence: str
) -> None:
    """The workflow ends FAILED and says why, its task does not hang, and the worker goes on."""
    add_pipelines(registry)
    async with worker() as running:
        run_id = await start(running, *arguments)
        with pytest.raises(WorkflowFailureError) as failed:
            await running.temporal.get_workflow_handle(run_id).result()
        view = await running.redrive.status(run_id)
        good = await run_until_settled(running.redrive, "good")
    cause = failed.value.cause
    assert isinstance(cause, ApplicationError)
    assert sentence in cause.message
    assert "hunter2" not in cause.message
    assert (view.status, view.error, view.note) == (RunStatus.FAILED, cause.message, None)
    assert good.status is RunStatus.SUCCESS


async def test_a_second_input_fails_the_run_with_a_sentence(worker: WorkerFactory, registry: Registry) -> None:
    """Two `--input` of `temporal workflow start` end the run FAILED: its workflow task is not tried for ever."""
    add_pipelines(registry)
    async with worker() as running:
        run_id = await start(running, {"pipeline": "good", "payload": {}}, {"n": 1})
        with pytest.raises(WorkflowFailureError) as failed:
            await running.temporal.get_workflow_handle(run_id).result()
        view = await running.redrive.status(run_id)
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.message == "ModuleRun was given 2 inputs; it takes one JSON document"
    assert view.status is RunStatus.FAILED
