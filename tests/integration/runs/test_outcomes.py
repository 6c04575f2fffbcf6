"""What a run returns, what its steps see of its document, and how a failure reads: parked, then discarded."""

import asyncio
import json
from typing import Any

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, RootModel
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from redrive import Category, ModuleContext, Pipeline, Registry, RunFailed, RunStatus, StepStatus, Terminal
from redrive.contracts import FailedCycle, RunSummary
from redrive.dead_letters import LetterId
from tests.conftest import Running, WorkerFactory, eventually
from tests.integration.runs.samples import Number, add_good_pipeline, discarded, run_until_settled, settled


class Order(BaseModel):
    """The first step's input."""

    sku: str
    count: int = Field(validation_alias=AliasChoices("count", "quantity"))


class Reserved(BaseModel):
    """The first step's output."""

    place: str


class Shipment(BaseModel):
    """A later step's input: a payload field by alias, and an earlier step's output under its name."""

    model_config = ConfigDict(extra="forbid")

    article: str = Field(alias="sku")
    reserve: Reserved


class Everything(BaseModel):
    """An input that takes the whole document."""

    model_config = ConfigDict(extra="allow")


class Whole(RootModel[dict[str, Any]]):
    """Another one."""


class Seen(BaseModel):
    """What a module saw."""

    document: dict[str, Any]


def add_shop(registry: Registry) -> None:
    """Register a pipeline of four steps that read the document in different ways."""

    @registry.module("reserve")
    async def reserve(ctx: ModuleContext, given: Order) -> Reserved:
        return Reserved(place=f"{given.sku}x{given.count}")

    @registry.module("ship")
    async def ship(ctx: ModuleContext, given: Shipment) -> Seen:
        return Seen(document={"article": given.article, "place": given.reserve.place})

    @registry.module("audit")
    async def audit(ctx: ModuleContext, given: Everything) -> Seen:
        return Seen(document=given.model_extra or {})

    @registry.module("archive")
    async def archive(ctx: ModuleContext, given: Whole) -> Seen:
        return Seen(document={"names": sorted(given.root)})

    Pipeline("shop", reserve, ship, audit, archive, registry=registry)


async def test_a_run_returns_its_last_steps_output(worker: WorkerFactory, registry: Registry) -> None:
    """The result is what the last step returned, and all steps are SUCCESS."""
    add_shop(registry)
    async with worker() as running:
        started = await running.redrive.start("shop", {"sku": "cup", "quantity": 2, "note": "hi"})
        result = await running.redrive.result(started.run_id)
    assert result.status is RunStatus.SUCCESS
    assert result.output == {"document": {"names": ["audit", "note", "quantity", "reserve", "ship", "sku"]}}
    assert [step.status for step in result.steps] == [StepStatus.SUCCESS] * 4


async def test_steps_see_the_payload_and_earlier_outputs_under_their_names(
    worker: WorkerFactory, registry: Registry
) -> None:
    """Aliases are honoured, outputs stand under their step's name, and a step that takes all sees all."""
    seen: dict[str, Any] = {}
    add_shop(registry)

    @registry.module("look")
    async def look(ctx: ModuleContext, given: Everything) -> Number:
        seen.update(given.model_extra or {})
        return Number()

    shop = registry.pipelines["shop"]
    Pipeline("seen", *shop.modules, look, registry=registry)
    async with worker() as running:
        await run_until_settled(running.redrive, "seen", {"sku": "cup", "count": 2, "note": "hi"})
    assert seen["reserve"] == {"place": "cupx2"}
    assert seen["ship"] == {"document": {"article": "cup", "place": "cupx2"}}
    assert seen["audit"]["document"].keys() == {"sku", "count", "note", "reserve", "ship"}
    assert seen["note"] == "hi"


async def test_a_step_is_sent_only_what_it_reads(worker: WorkerFactory, registry: Registry) -> None:
    """Fields that a step's input model does not name do not travel to it."""
    add_shop(registry)
    async with worker() as running:
        view = await run_until_settled(running.redrive, "shop", {"sku": "cup", "count": 2, "note": "hi"})
        history = await running.temporal.get_workflow_handle(view.run_id).fetch_history()
    orders = [
        json.loads(event.activity_task_scheduled_event_attributes.input.payloads[0].data)
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    assert [sorted(order["document"]) for order in orders] == [
        ["count", "sku"],
        ["reserve", "sku"],
        ["count", "note", "reserve", "ship", "sku"],
        ["audit", "count", "note", "reserve", "ship", "sku"],
    ]


async def test_a_module_knows_its_run(worker: WorkerFactory, registry: Registry) -> None:
    """The context carries run, step, pipeline, tenant, attempt, user and correlation id."""
    contexts: list[ModuleContext] = []

    @registry.module("look")
    async def look(ctx: ModuleContext, given: Number) -> Number:
        contexts.append(ctx)
        ctx.heartbeat()
        return given

    Pipeline("p", look, registry=registry)
    async with worker() as running:
        started = await running.redrive.start("p", {}, tenant="acme", correlation_id="c-1", user_id="u-1")
        await running.redrive.result(started.run_id)
        view = await running.redrive.status(started.run_id)
    (ctx,) = contexts
    assert (ctx.run_id, ctx.step, ctx.pipeline, ctx.tenant) == (started.run_id, "look", "p", "acme")
    assert (ctx.attempt, ctx.max_attempts, ctx.correlation_id, ctx.user_id) == (1, 4, "c-1", "u-1")
    assert ctx.idempotency_key == f"{started.run_id}:look:run"
    assert (view.tenant, view.correlation_id) == ("acme", "c-1")
    assert view.started_at is not None
    assert view.closed_at is not None


def add_failing(registry: Registry) -> None:
    """Register a pipeline whose second of three steps fails for good."""

    @registry.module("one")
    async def one(ctx: ModuleContext, given: Number) -> Number:
        return given

    @registry.module("two")
    async def two(ctx: ModuleContext, given: Number) -> Number:
        raise Terminal("the card is stolen", category=Category.PROVIDER_4XX)

    @registry.module("three")
    async def three(ctx: ModuleContext, given: Number) -> Number:
        raise AssertionError("never called")

    Pipeline("failing", one, two, three, registry=registry)


async def test_a_parked_run_says_which_step_is_dead_and_why(worker: WorkerFactory, registry: Registry) -> None:
    """Step, category and text stand in the status of a run that waits for an operator; later steps wait, too."""
    add_failing(registry)
    async with worker() as running:
        view = await run_until_settled(running.redrive, "failing")
    assert view.error == "step 'two' failed (provider_4xx): the card is stolen"
    assert (view.status, view.closed_at) == (RunStatus.DLQ_PENDING, None)
    assert [step.status for step in view.steps] == [StepStatus.SUCCESS, StepStatus.DLQ, StepStatus.PENDING]


async def test_a_discarded_run_says_who_gave_it_up_and_why(worker: WorkerFactory, registry: Registry) -> None:
    """Step, operator and reason stand in the error of `result` and in the status, and later steps are skipped."""
    add_failing(registry)
    async with worker() as running:
        started = await running.redrive.start("failing", {})
        view = await discarded(running.redrive, started.run_id, reason="the card is gone")
        with pytest.raises(RunFailed) as failed:
            await running.redrive.result(started.run_id)
    sentence = "step 'two' discarded by ada: the card is gone"
    assert str(failed.value) == f"run {started.run_id!r} failed: {sentence}"
    assert view.error == sentence
    assert view.status is RunStatus.FAILED
    assert [step.status for step in view.steps] == [StepStatus.SUCCESS, StepStatus.FAILED, StepStatus.SKIPPED]


async def test_result_waits_while_a_run_is_parked(worker: WorkerFactory, registry: Registry) -> None:
    """A parked run has no result yet: whoever waits for it gets the one that an operator's replay brings."""
    healthy = asyncio.Event()

    @registry.module("only")
    async def only(ctx: ModuleContext, given: Number) -> Number:
        if not healthy.is_set():
            raise Terminal("not now")
        return Number(n=7)

    Pipeline("p", only, registry=registry)
    async with worker() as running:
        started = await running.redrive.start("p", {})
        waiting = asyncio.create_task(running.redrive.result(started.run_id))
        view = await settled(running.redrive, started.run_id)
        assert (view.status, waiting.done()) == (RunStatus.DLQ_PENDING, False)
        healthy.set()
        letter = LetterId(tenant=view.tenant, run_id=view.run_id, step="only")

        async def accepted() -> bool:
            return (await running.redrive.dead_letters.replay(letter, requested_by="ada", reason="mended")).accepted

        await eventually(accepted)
        result = await asyncio.wait_for(waiting, 45)
    assert (result.status, result.output) == (RunStatus.SUCCESS, {"n": 7})


async def test_a_discarded_run_carries_its_cycle_in_the_failures_details(
    worker: WorkerFactory, registry: Registry
) -> None:
    """Whoever reads the workflow's failure finds the cycle: attempts, category, stack and the worker's build."""
    add_failing(registry)
    async with worker(build_id="build-7") as running:
        started = await running.redrive.start("failing", {})
        await discarded(running.redrive, started.run_id)
        with pytest.raises(WorkflowFailureError) as failed:
            await running.temporal.get_workflow_handle(started.run_id).result()
    cause = failed.value.cause
    assert isinstance(cause, ApplicationError)
    assert (cause.type, cause.non_retryable) == ("provider_4xx", True)
    cycle = FailedCycle.model_validate(cause.details[0])
    assert (cycle.step, cycle.cycle, cycle.category) == ("two", 1, Category.PROVIDER_4XX)
    assert (cycle.error_type, cycle.message, cycle.build_id) == ("Terminal", "the card is stolen", "build-7")
    assert "in two" in cycle.stack
    assert [entry.attempt for entry in cycle.attempts] == [1]


async def listed(running: Running, wanted: str, **filters: Any) -> RunSummary:
    """Return a run when the list with these filters shows it."""

    async def ask() -> RunSummary | None:
        rows = [row async for row in running.redrive.list_runs(**filters)]
        return next((row for row in rows if row.run_id == wanted), None)

    return await eventually(ask)


async def test_runs_are_listed_by_status_pipeline_and_tenant(worker: WorkerFactory, registry: Registry) -> None:
    """A list filtered by any of the three shows the runs that fit and no others, with the failed step and category."""
    add_failing(registry)
    add_good_pipeline(registry)
    async with worker() as running:
        tenant = running.settings.task_queue
        failing = await running.redrive.start("failing", {}, tenant=tenant)
        good = await running.redrive.start("good", {}, tenant=tenant)
        parked = await listed(running, failing.run_id, tenant=tenant, status=RunStatus.DLQ_PENDING)
        await discarded(running.redrive, failing.run_id)
        failed = await listed(running, failing.run_id, tenant=tenant, status=RunStatus.FAILED)
        success = await listed(running, good.run_id, tenant=tenant, status=RunStatus.SUCCESS)
        by_pipeline = [row async for row in running.redrive.list_runs(tenant=tenant, pipeline="good")]
        elsewhere = [row async for row in running.redrive.list_runs(tenant="nobody")]
        open_ones = [row async for row in running.redrive.list_runs(tenant=tenant, status=RunStatus.RUNNING)]
        both = [row.run_id async for row in running.redrive.list_runs(tenant=tenant)]
    assert (parked.failed_step, parked.category, parked.closed_at) == ("two", "provider_4xx", None)
    assert (failed.failed_step, failed.category, failed.pipeline) == ("two", "provider_4xx", "failing")
    assert (success.failed_step, success.category, success.status) == (None, None, RunStatus.SUCCESS)
    assert [row.run_id for row in by_pipeline] == [good.run_id]
    assert elsewhere == open_ones == []
    assert set(both) == {good.run_id, failing.run_id}


async def test_a_parked_run_reads_well_in_the_web_ui(worker: WorkerFactory, registry: Registry) -> None:
    """The current details name the steps, the failed one and the text; the summary names pipeline and tenant."""
    add_failing(registry)
    async with worker() as running:
        view = await run_until_settled(running.redrive, "failing")
        handle = running.temporal.get_workflow_handle(view.run_id)
        details = await handle.query("__temporal_workflow_metadata")
        description = await handle.describe()
    assert "**dead letter**" in str(details)
    assert "send the signal `replay`" in str(details)
    assert "the card is stolen" in str(details)
    assert await description.static_summary() == "failing of tenant default"
