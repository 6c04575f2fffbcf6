"""Dead letters of foreign workflows among those of pipelines: bulk operations, lists, groups, reconcile."""

import uuid

from redrive import STEP, ModuleContext, Pipeline, Registry, Terminal
from redrive.bulk import BulkCommand, BulkProgress, BulkStatus
from redrive.dead_letters import LetterFilter, LetterSelection, LetterStatus, Verb
from redrive.missed_ends import MissedEnds
from redrive.postgres.database import Database
from redrive.reconcile import Kind, Reconciliation
from redrive.redaction.redactor import Redactor
from redrive.settings import Settings
from redrive.store.dead_letters.figures import groups, stats
from tests.conftest import eventually
from tests.integration.bulk.lab import Done, Given
from tests.integration.plugin import project
from tests.integration.plugin.conftest import ProjectFactory
from tests.integration.plugin.lab import running

BROKEN = {"pay"}


def register(registry: Registry) -> None:
    """Add a pipeline of one step that fails while it is broken."""

    @registry.module("pay", policy=STEP)
    async def pay(ctx: ModuleContext, given: Given) -> Done:
        if BROKEN:
            raise Terminal("broken")
        return Done(number=given.number)

    Pipeline("paying", pay, registry=registry)


async def test_one_bulk_operation_replays_both_kinds(
    new_project: ProjectFactory, registry: Registry, settings: Settings
) -> None:
    """A selection by tenant holds a pipeline's and a workflow's dead letters; both are replayed by one operation."""
    register(registry)
    tenant = f"tenant-{uuid.uuid4().hex[:8]}"
    async with running(await new_project(tenant=tenant)) as users:
        users.broken("charge")
        handles = [await users.start(project.OrderWorkflow.run, users.order()) for _ in range(2)]
        started = await users.redrive.start("paying", {"case": "x", "number": 1}, tenant=tenant)
        for handle in handles:
            await users.parked(handle)
        assert settings.database_url
        async with Database(settings.database_url.get_secret_value()) as database:
            pool = await database.pool()

            async def all_three() -> bool:
                return (await stats(pool, tenant)).by_step == {"charge": 2, "pay": 1}

            await eventually(all_three)
            found = await groups(pool, LetterFilter(tenant=tenant))
            assert {(group.pipeline, group.step, group.count) for group in found} == {
                ("OrderWorkflow", "charge", 2),
                ("paying", "pay", 1),
            }
        users.broken()
        BROKEN.clear()
        bulk = users.redrive.bulk
        command = BulkCommand(tenant=tenant, verb=Verb.REPLAY, selection=LetterSelection())
        plan = await bulk.plan(command)
        assert plan.count == 3
        await bulk.start(plan, requested_by="ada", reason="fixed")
        for handle in handles:
            assert await handle.result() == "1: shipped o-1 in 3"
            await users.closed(handle, LetterStatus.REPLAYED)
        await users.redrive.result(started.run_id)


async def test_a_bulk_operation_resolves_with_what_an_activity_returns(new_project: ProjectFactory) -> None:
    """Any JSON, not only an object; one that does not fit is skipped with the reason."""
    tenant = f"tenant-{uuid.uuid4().hex[:8]}"
    async with running(await new_project(tenant=tenant)) as users:
        users.broken("ship")
        handle = await users.start(project.OrderWorkflow.run, users.order())
        await users.parked(handle)
        bulk = users.redrive.bulk
        for output, counts in ((["by", "hand"], (0, 1)), ("by hand", (1, 0))):
            plan = await bulk.plan(BulkCommand(tenant=tenant, verb=Verb.RESOLVE, output=output))
            assert [group.note for group in plan.groups] == ["what follows is decided by the workflow's own code"]
            started = await bulk.start(plan, requested_by="ada", reason="shipped by hand")

            async def ended(bulk_id: str = started.bulk_id) -> BulkProgress | None:
                view = await bulk.get(bulk_id, tenant=tenant)
                return view.progress if view.status is BulkStatus.DONE else None

            progress = await eventually(ended)
            assert (progress.applied, progress.skipped) == counts
        assert await handle.result() == "1: by hand"


async def test_reconcile_leaves_parked_ones_alone_and_marks_those_whose_workflow_is_gone(
    new_project: ProjectFactory, settings: Settings
) -> None:
    """A parked workflow needs no answer; a terminated one is reported and marked."""
    tenant = f"tenant-{uuid.uuid4().hex[:8]}"
    async with running(await new_project(tenant=tenant)) as users:
        users.broken("charge")
        parked, gone = [await users.start(project.OrderWorkflow.run, users.order()) for _ in range(2)]
        for handle in (parked, gone):
            await users.parked(handle)
        await gone.terminate()
        assert settings.database_url
        async with Database(settings.database_url.get_secret_value()) as database:
            pool = await database.pool()
            ends = MissedEnds(users.client, pool, Redactor())
            report = await Reconciliation(users.client, pool, ends, repair=True).run(tenant)
        assert [(problem.kind, problem.run_id, problem.repaired) for problem in report.problems] == [
            (Kind.RUN_GONE, gone.id, True)
        ]
        [row] = await users.letters(gone)
        assert row["orphaned"]
        await parked.terminate()
