"""Schedules of pipelines, on the real server: when runs start, once for each time, and what they are given."""

import uuid
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from temporalio.common import SearchAttributeKey

from redrive import InvalidInput, ModuleContext, Pipeline, Redrive, Registry, RunStatus, Terminal
from redrive.contracts import LABELS_ATTRIBUTE, RunView
from redrive.errors import ScheduleExists, ScheduleNotFound, UnknownPipeline
from redrive.schedules import NewSchedule, Overlap, ScheduleSummary
from tests.conftest import Running, WorkerFactory, eventually
from tests.integration.runs.samples import Number, add_good_pipeline, ended

DAY = datetime(2026, 3, 2, tzinfo=UTC)


def new_schedule(**changes: Any) -> NewSchedule:
    """A schedule of a tenant of its own, which is not due while the test runs."""
    given = {
        "name": "nightly",
        "tenant": f"tenant-{uuid.uuid4().hex[:12]}",
        "pipeline": "good",
        "payload": {"n": 1},
        "cron": ["0 5 1 1 *"],
    }
    return NewSchedule.model_validate(given | changes)


async def runs_of(running: Running, tenant: str, count: int) -> list[RunView]:
    """Wait until a tenant has so many runs, and for their end."""

    async def listed() -> list[str] | None:
        rows = [row.run_id async for row in running.redrive.list_runs(tenant=tenant)]
        return rows if len(rows) >= count else None

    return [await ended(running.redrive, run_id) for run_id in await eventually(listed)]


async def test_a_schedule_is_shown_as_it_was_created(worker: WorkerFactory, registry: Registry) -> None:
    """Times, zone, jitter, policy and payload come back; the list has it under its tenant alone."""
    add_good_pipeline(registry)
    wanted = new_schedule(
        cron=["0 5 * * 1-5", "30 9 * * *"],
        every=[timedelta(hours=8)],
        time_zone="Europe/Vienna",
        jitter=timedelta(minutes=3),
        overlap=Overlap.SKIP,
        note="before the shops open",
    )
    async with worker() as running:
        schedules = running.redrive.schedules
        shown = await schedules.create(wanted)

        async def listed() -> list[ScheduleSummary]:
            return await schedules.list_schedules(wanted.tenant)

        (row,) = await eventually(listed)
        assert await schedules.list_schedules("another-tenant") == []
        with pytest.raises(ScheduleNotFound, match="tenant 'another-tenant' has no schedule 'nightly'"):
            await schedules.show("another-tenant", wanted.name)
        await schedules.delete(wanted.tenant, wanted.name)
        with pytest.raises(ScheduleNotFound):
            await schedules.show(wanted.tenant, wanted.name)
    fields = ("name", "tenant", "pipeline", "cron", "every", "time_zone", "jitter", "note")
    assert {name: getattr(shown, name) for name in fields} == {name: getattr(wanted, name) for name in fields}
    assert {name: getattr(row, name) for name in fields} == {name: getattr(wanted, name) for name in fields}
    assert (shown.overlap, shown.payload, shown.paused, shown.runs) == (Overlap.SKIP, {"n": 1}, False, 0)
    assert shown.next_at[0] > shown.created_at


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"payload": {"n": "many"}}, InvalidInput, "payload does not fit 'good': n: .*got 'many'"),
        ({"cron": []}, InvalidInput, "a schedule needs times"),
        ({"cron": ["at noon"]}, InvalidInput, "Temporal refuses the schedule: .*5-7 fields"),
        ({"time_zone": "Mars/Olympus"}, InvalidInput, "unknown time zone Mars/Olympus"),
    ],
)
async def test_a_wrong_schedule_is_refused_when_it_is_created(
    worker: WorkerFactory, registry: Registry, changes: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    """The payload is checked like that of a start, and nothing is left behind."""
    add_good_pipeline(registry)
    wanted = new_schedule(**changes)
    async with worker() as running:
        with pytest.raises(error, match=sentence):
            await running.redrive.schedules.create(wanted)
        with pytest.raises(ScheduleNotFound):
            await running.redrive.schedules.show(wanted.tenant, wanted.name)


async def test_a_caller_without_the_code_is_refused_by_the_published_catalog(
    worker: WorkerFactory, registry: Registry
) -> None:
    """What the workers have published is enough to refuse an unknown pipeline."""
    add_good_pipeline(registry)
    async with worker() as running, await Redrive.connect(running.settings) as stranger:

        async def published() -> bool:
            return bool((await stranger.catalog()).pipelines)

        await eventually(published)
        with pytest.raises(UnknownPipeline, match="bad-name"):
            await stranger.schedules.create(new_schedule(pipeline="bad-name"))


async def test_a_name_is_used_once_by_a_tenant(worker: WorkerFactory, registry: Registry) -> None:
    """A second schedule of the name is refused, another tenant may have it; dashes do not mix up two tenants."""
    add_good_pipeline(registry)
    base = f"t-{uuid.uuid4().hex[:12]}"
    async with worker() as running:
        schedules = running.redrive.schedules
        first = await schedules.create(new_schedule(tenant=base, name="a-b"))
        with pytest.raises(ScheduleExists, match="has a schedule 'a-b' already"):
            await schedules.create(new_schedule(tenant=base, name="a-b"))
        second = await schedules.create(new_schedule(tenant=f"{base}-a", name="b"))
        assert await schedules.trigger(first.tenant, first.name) != await schedules.trigger(second.tenant, second.name)
        await schedules.delete(base, "a-b")
        await schedules.delete(f"{base}-a", "b")


async def test_a_triggered_run_is_a_run_like_any_other(worker: WorkerFactory, registry: Registry) -> None:
    """It has its tenant, pipeline and labels, also in lists, the steps of today's code, and its own id in its keys."""
    keys: list[str] = []

    @registry.module("good")
    async def good(ctx: ModuleContext, given: Number) -> Number:
        keys.append(ctx.idempotency_key)
        return given

    Pipeline("good", good, registry=registry)
    labels = {"mission_id": "42", "stage_id": "2"}
    wanted = new_schedule(labels=labels)
    async with worker() as running:
        created = await running.redrive.schedules.create(wanted)
        run_id = await running.redrive.schedules.trigger(wanted.tenant, wanted.name)
        assert run_id
        view = await ended(running.redrive, run_id)
        shown = await running.redrive.schedules.show(wanted.tenant, wanted.name)
        described = await running.temporal.get_workflow_handle(run_id).describe()
        await running.redrive.schedules.delete(wanted.tenant, wanted.name)
    assert (view.status, view.tenant, view.pipeline) == (RunStatus.SUCCESS, wanted.tenant, "good")
    assert (created.labels, view.labels) == (labels, labels)
    pairs = described.typed_search_attributes.get(SearchAttributeKey.for_keyword_list(LABELS_ATTRIBUTE))
    assert pairs == ["mission_id=42", "stage_id=2"]
    assert described.typed_search_attributes.get(SearchAttributeKey.for_keyword("RedriveTenant")) == wanted.tenant
    assert described.typed_search_attributes.get(SearchAttributeKey.for_keyword("RedrivePipeline")) == "good"
    assert [each.run_id for each in shown.recent] == [run_id]
    assert [key.startswith(f"{run_id}:good") for key in keys] == [True]


async def test_a_backfill_gives_each_time_its_run_once(worker: WorkerFactory, registry: Registry) -> None:
    """Three days are three runs; the same days again, in another way too, start nothing."""
    add_good_pipeline(registry)
    wanted = new_schedule(cron=["0 5 * * *"])
    async with worker() as running:
        schedules = running.redrive.schedules
        await schedules.create(wanted)
        period = (wanted.tenant, wanted.name, DAY, DAY + timedelta(days=3))
        due = await schedules.times(*period)
        assert await schedules.backfill(*period) == 3
        views = await runs_of(running, wanted.tenant, 3)
        assert await schedules.backfill(*period) == 3

        async def twice() -> bool:
            return (await schedules.show(wanted.tenant, wanted.name)).runs == 6

        await eventually(twice)
        starters = f"WorkflowId STARTS_WITH 'scheduled-run-{wanted.tenant}.' AND ExecutionStatus = 'Completed'"

        async def quiet() -> bool:
            return len([each async for each in running.temporal.list_workflows(starters)]) == 6

        await eventually(quiet)
        rows = [row.run_id async for row in running.redrive.list_runs(tenant=wanted.tenant)]
        await schedules.delete(wanted.tenant, wanted.name)
    expected = {f"run-{wanted.tenant}.nightly-{day:%Y-%m-%dT%H:%M:%SZ}" for day in due}
    assert len(rows) == 3
    assert set(rows) == {view.run_id for view in views} == expected


async def test_a_backfill_counts_what_is_due_at_its_first_and_last_moment(
    worker: WorkerFactory, registry: Registry
) -> None:
    """A period from midnight to midnight has both: as many runs as it says start."""
    add_good_pipeline(registry)
    wanted = new_schedule(cron=["0 0 * * *"])
    async with worker() as running:
        schedules = running.redrive.schedules
        await schedules.create(wanted)
        whose = (wanted.tenant, wanted.name)
        assert await schedules.backfill(*whose, DAY, DAY + timedelta(hours=1)) == 1
        await runs_of(running, wanted.tenant, 1)
        said = await schedules.backfill(*whose, DAY + timedelta(days=10), DAY + timedelta(days=11))

        async def all_started() -> bool:
            return (await schedules.show(*whose)).runs == 1 + said

        await eventually(all_started)
        days = {view.run_id[-20:-10] for view in await runs_of(running, wanted.tenant, 1 + said)}
        await schedules.delete(*whose)
    assert days == {f"{DAY + timedelta(days=number):%Y-%m-%d}" for number in (0, 10, 11)}


async def test_a_backfill_of_no_time_or_too_many_is_refused(worker: WorkerFactory, registry: Registry) -> None:
    """A period must have a due time, and fewer than Temporal keeps waiting."""
    add_good_pipeline(registry)
    wanted = new_schedule(cron=["0 5 * * *"], every=[timedelta(minutes=1)])
    async with worker() as running:
        schedules = running.redrive.schedules
        await schedules.create(wanted)
        whose = (wanted.tenant, wanted.name)
        with pytest.raises(InvalidInput, match="1000 or more"):
            await schedules.backfill(*whose, DAY, DAY + timedelta(days=3))
        with pytest.raises(InvalidInput, match="before it begins"):
            await schedules.backfill(*whose, DAY, DAY)
        with pytest.raises(InvalidInput, match="no run was due"):
            await schedules.backfill(*whose, DAY + timedelta(seconds=1), DAY + timedelta(seconds=2))
        await schedules.delete(*whose)


async def test_skip_waits_for_a_parked_run_and_allow_all_does_not(worker: WorkerFactory, registry: Registry) -> None:
    """A parked run is open: with `skip` the next does not start and is counted, by default it does."""

    @registry.module("broken")
    async def broken(_ctx: ModuleContext, _given: Number) -> Number:
        raise Terminal("the bank is closed")

    Pipeline("broken", broken, registry=registry)
    skipping, allowing = new_schedule(pipeline="broken", overlap=Overlap.SKIP), new_schedule(pipeline="broken")
    async with worker() as running:
        schedules = running.redrive.schedules
        for wanted in (skipping, allowing):
            await schedules.create(wanted)
            run_id = await schedules.trigger(wanted.tenant, wanted.name)
            assert run_id
            await eventually(partial(_is_parked, running, run_id))
        assert await schedules.trigger(skipping.tenant, skipping.name) is None
        assert (await schedules.show(skipping.tenant, skipping.name)).skipped == 1
        assert await schedules.trigger(allowing.tenant, allowing.name)
        for wanted in (skipping, allowing):
            await schedules.delete(wanted.tenant, wanted.name)


async def _is_parked(running: Running, run_id: str) -> bool:
    return (await running.redrive.status(run_id)).status is RunStatus.DLQ_PENDING


async def test_a_paused_schedule_starts_nothing_until_it_is_resumed(worker: WorkerFactory, registry: Registry) -> None:
    """One that is due every second is silent while it is paused."""
    add_good_pipeline(registry)
    wanted = new_schedule(cron=[], every=[timedelta(seconds=1)], paused=True)
    async with worker() as running:
        schedules = running.redrive.schedules
        paused = await schedules.create(wanted)
        await schedules.resume(wanted.tenant, wanted.name, note="go")
        await runs_of(running, wanted.tenant, 1)
        await schedules.pause(wanted.tenant, wanted.name, note="the bank is closed")
        shown = await schedules.show(wanted.tenant, wanted.name)
        await schedules.delete(wanted.tenant, wanted.name)
    assert (paused.paused, paused.next_at) == (True, [])
    assert (shown.paused, shown.note) == (True, "the bank is closed")


async def test_cancel_other_cancels_the_run_itself(worker: WorkerFactory, registry: Registry) -> None:
    """The overlap policy reaches the run: the open one ends CANCELED, the new one starts."""

    @registry.module("broken")
    async def broken(_ctx: ModuleContext, _given: Number) -> Number:
        raise Terminal("the bank is closed")

    Pipeline("broken", broken, registry=registry)
    wanted = new_schedule(pipeline="broken", overlap=Overlap.CANCEL_OTHER)
    async with worker() as running:
        schedules = running.redrive.schedules
        await schedules.create(wanted)
        first = await schedules.trigger(wanted.tenant, wanted.name)
        assert first
        await eventually(lambda: _is_parked(running, first))
        second = await schedules.trigger(wanted.tenant, wanted.name)
        view = await ended(running.redrive, first)
        await schedules.delete(wanted.tenant, wanted.name)
    assert second != first
    assert view.status is RunStatus.CANCELED
