"""The plan before a bulk operation: what it says, when it holds, who has to say yes."""

import uuid
from collections.abc import AsyncIterator
from functools import partial

import pytest

from redrive import InvalidInput, Redrive, Registry
from redrive.bulk import BulkStatus, PlannedStep
from redrive.categories import Category
from redrive.connection import database_url
from redrive.contracts import Effect
from redrive.dead_letters import LetterSelection, Mode
from redrive.errors import ApprovalNeeded, ApprovalNotFound, BulkRefused, PlanChanged, SameApprover, UnsafeEffects
from redrive.postgres.database import open_pool
from redrive.settings import Settings
from redrive.store.bulk.plans import KnownSteps, plan_bulk
from redrive.worker import running_worker
from tests.integration.bulk.lab import WHO, Case, register


@pytest.fixture
async def careful(case: Case, lab_settings: Settings) -> AsyncIterator[Case]:
    """The same tenant at a worker that wants every bulk operation approved."""
    registry = Registry()
    register(registry)
    settings = lab_settings.model_copy(update={"approvals": True, "task_queue": f"queue-{uuid.uuid4().hex[:12]}"})
    async with running_worker(settings, registry):
        case.redrive = Redrive(case.temporal, task_queue=settings.task_queue, registry=registry)
        yield case


async def test_a_process_with_a_database_plans_without_a_worker(case: Case, lab_settings: Settings) -> None:
    """The plan is the worker's: same count, same steps, same hash; on a queue where nobody listens."""
    await case.park(1, 2)
    asked = await case.redrive.bulk.plan(case.command())
    catalog = await case.redrive.catalog()
    alone = Redrive(case.temporal, task_queue=f"queue-{uuid.uuid4().hex[:12]}")
    async with await open_pool(database_url(lab_settings), max_size=1) as pool:
        plan = await alone.bulk.plan(asked.command, partial(plan_bulk, pool, KnownSteps.published(catalog)))
    assert plan == asked


async def test_a_plan_says_how_many_run_what_again(case: Case) -> None:
    """Steps that run again come with what their repetition means; asked again, it is the same plan."""
    await case.park(1, 2)
    await case.park(7, pipeline="wires", step="transfer")
    plan = await case.redrive.bulk.plan(case.command())
    told = {group.pipeline: (group.step, group.count, group.run_again, group.afterwards) for group in plan.groups}
    assert told == {
        "orders": ("charge", 2, [PlannedStep(name="charge", effect=Effect.KEYED)], ["ship"]),
        "wires": ("transfer", 1, [PlannedStep(name="transfer", effect=Effect.UNSAFE)], []),
    }
    assert (plan.count, plan.unsafe, plan.approval_needed) == (3, ["transfer"], False)
    assert await case.redrive.bulk.plan(plan.command) == plan
    alone = await case.redrive.bulk.plan(
        case.command(mode=Mode.STEP_ONLY, selection=LetterSelection(pipeline="orders"))
    )
    assert [group.afterwards for group in alone.groups] == [[]]


@pytest.mark.parametrize(
    "selection",
    [
        LetterSelection(pipeline="nothing"),
        LetterSelection(step="ship"),
        LetterSelection(category=Category.TIMEOUT),
        LetterSelection(fingerprint="0" * 16),
        LetterSelection(text="no such text"),
        LetterSelection(letters=["dead-letter-run-0-charge"]),
    ],
)
async def test_a_selection_that_nothing_fits_is_refused(case: Case, selection: LetterSelection) -> None:
    """Each filter filters, and a plan for nothing is no plan."""
    await case.park(1)
    with pytest.raises(InvalidInput, match="no open dead letter fits"):
        await case.redrive.bulk.plan(case.command(selection=selection))
    fitting = LetterSelection(
        pipeline="orders", module="charge", text="PROVIDER is", letters=[case.runs[1].workflow_id]
    )
    assert (await case.redrive.bulk.plan(case.command(selection=fitting))).count == 1


async def test_a_plan_whose_letters_have_changed_is_refused(case: Case) -> None:
    """PLAN_CHANGED, nothing was sent, and the refusal is in the audit log. New failures do not matter."""
    await case.park(1, 2)
    plan = await case.redrive.bulk.plan(case.command())
    await case.redrive.dead_letters.discard(case.runs[1], requested_by="bob", reason="mine")
    with pytest.raises(PlanChanged, match="1 dead letters now") as refused:
        await case.redrive.bulk.start(plan, **WHO)
    assert refused.value.code == "PLAN_CHANGED"
    assert [entry["actor"] for entry in await case.audit() if entry["action"] == "bulk_refused"] == ["ada"]
    assert await case.rows("SELECT id FROM redrive.bulk_operations WHERE tenant = $1", case.tenant) == []

    plan = await case.redrive.bulk.plan(case.command())
    case.mend()
    await case.park(3)
    bulk = await case.redrive.bulk.start(plan, **WHO)
    assert (await case.until(bulk, BulkStatus.DONE)).progress.total == 1


async def test_a_plan_with_another_command_is_refused(case: Case) -> None:
    """The hash binds the command, too: what was looked at is what is done."""
    await case.park(1)
    plan = await case.redrive.bulk.plan(case.command(rate=1))
    changed = plan.model_copy(update={"command": plan.command.model_copy(update={"rate": 900})})
    with pytest.raises(PlanChanged):
        await case.redrive.bulk.start(changed, **WHO)


async def test_unsafe_effects_need_a_yes(case: Case) -> None:
    """A module that says its effect is not guarded by a key is not run again by the hundred in passing."""
    await case.park(7, pipeline="wires", step="transfer")
    case.mend()
    with pytest.raises(UnsafeEffects, match="transfer: running again repeats effects"):
        await case.start()
    bulk = await case.start(allow_unsafe=True)
    await case.until(bulk, BulkStatus.DONE)


async def test_a_request_id_belongs_to_one_command(case: Case) -> None:
    """The same request id with another command is refused, not taken for the first one."""
    await case.park(1, 2)
    case.mend()
    first = LetterSelection(letters=[case.runs[1].workflow_id])
    bulk = await case.start(case.command(selection=first), request_id="mine")
    with pytest.raises(BulkRefused, match="belongs to another bulk operation"):
        await case.start(case.command(mode=Mode.STEP_ONLY), request_id="mine")
    await case.until(bulk, BulkStatus.DONE)


async def test_with_approvals_on_another_person_has_to_agree(careful: Case) -> None:
    """Not oneself under another name, not for a plan that nobody asked for, and not elsewhere."""
    await careful.park(1, 2)
    careful.mend()
    bulk = careful.redrive.bulk
    plan, other = [
        await bulk.plan(careful.command(selection=LetterSelection(letters=[careful.runs[number].workflow_id])))
        for number in (1, 2)
    ]
    assert plan.approval_needed
    yes = {"tenant": careful.tenant, "reason": "looked at it"}
    with pytest.raises(ApprovalNotFound):
        await bulk.approve(plan.hash, approved_by="bob", **yes)
    for wanted in (plan, other):
        with pytest.raises(ApprovalNeeded, match="somebody other than 'ada'"):
            await bulk.start(wanted, person="account:ada", **WHO)
    with pytest.raises(SameApprover, match="zoe asked for it"):
        await bulk.approve(plan.hash, approved_by="zoe", person="account:ada", **yes)
    with pytest.raises(ApprovalNotFound):
        await bulk.approve(plan.hash, approved_by="bob", tenant="elsewhere", reason="mischief")
    await bulk.approve(plan.hash, approved_by="bob", person="account:bob", **yes)
    started = await bulk.start(plan, person="account:ada", **WHO)
    await careful.until(started, BulkStatus.DONE)
    with pytest.raises(ApprovalNeeded):
        await bulk.start(other, person="account:ada", **WHO)
    lines = [(entry["action"], entry["actor"]) for entry in await careful.audit() if entry["action"].startswith("appr")]
    assert lines == [("approval_asked", "ada"), ("approval_asked", "ada"), ("approved", "bob")]


async def test_an_approval_is_good_for_an_hour(careful: Case) -> None:
    """After that somebody has to look again."""
    await careful.park(1)
    bulk = careful.redrive.bulk
    plan = await bulk.plan(careful.command())
    yes = {"tenant": careful.tenant, "approved_by": "bob", "reason": "looked at it"}
    with pytest.raises(ApprovalNeeded):
        await bulk.start(plan, **WHO)
    await bulk.approve(plan.hash, **yes)
    await careful.rows(
        "UPDATE redrive.approvals SET expires_at = expires_at - interval '61 minutes' WHERE tenant = $1", careful.tenant
    )
    with pytest.raises(ApprovalNotFound, match="it has expired"):
        await bulk.approve(plan.hash, **yes)
    with pytest.raises(ApprovalNeeded):
        await bulk.start(plan, **WHO)
