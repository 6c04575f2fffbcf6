"""The plan of a bulk operation: how many items, which steps run again, and which effects that repeats."""

from datetime import UTC, datetime

from temporalio import activity

from redrive.bulk import (
    ITEMS_LIMIT,
    Approval,
    ApprovalAnswer,
    BulkCommand,
    BulkItems,
    BulkPlan,
    BulkRequest,
    BulkStart,
    BulkView,
    ItemsRequest,
    PlanAnswer,
    PlannedGroup,
    PlannedStep,
    plan_hash,
)
from redrive.contracts import Activity, Effect
from redrive.dead_letters import Mode, Verb
from redrive.errors import (
    ApprovalNotFound,
    BulkNotFound,
    InvalidInput,
    PlanChanged,
    RedriveError,
    SameApprover,
    UnsafeEffects,
)
from redrive.modules import Registry
from redrive.postgres.database import Database
from redrive.redaction.redactor import Redactor
from redrive.store.approvals import Yes, approve
from redrive.store.bulk.lists import get_bulk, list_items
from redrive.store.bulk.members import Members, find_members


class BulkPlanActivities:
    """Answer queries about bulk operations; none of them changes a dead letter."""

    def __init__(self, database: Database, registry: Registry, redactor: Redactor, *, approvals: bool) -> None:
        self._database = database
        self._registry = registry
        self._redactor = redactor
        self._approvals = approvals

    @activity.defn(name=Activity.PLAN_BULK)
    async def plan_bulk(self, command: BulkCommand) -> PlanAnswer:
        """Return what a bulk operation would do, or why it is refused."""
        until = command.selection.until or datetime.now(UTC)
        # Later failures do not belong to it: otherwise no plan would stay valid while steps keep failing.
        fixed = command.model_copy(update={"selection": command.selection.model_copy(update={"until": until})})
        members = await find_members(await self._database.pool(), fixed)
        try:
            _check_size(members)
        except RedriveError as error:
            return PlanAnswer(problem=str(error), code=error.code)
        plan = planned(self._registry, fixed, members)
        return PlanAnswer(plan=plan.model_copy(update={"approval_needed": self._approvals}))

    @activity.defn(name=Activity.APPROVE_BULK)
    async def approve_bulk(self, approval: Approval) -> ApprovalAnswer:
        """Record an approval of a plan, or say why it does not count."""
        reason = self._redactor.text(approval.reason)
        yes = Yes(approved_by=approval.approved_by, person=approval.responsible, reason=reason)
        try:
            await approve(await self._database.pool(), approval.tenant, approval.plan_hash, yes)
        except (ApprovalNotFound, SameApprover) as error:
            return ApprovalAnswer(problem=str(error), code=error.code)
        return ApprovalAnswer()

    @activity.defn(name=Activity.DESCRIBE_BULK)
    async def describe_bulk(self, asked: BulkRequest) -> BulkView | None:
        """Return a bulk operation, or None."""
        try:
            return await get_bulk(await self._database.pool(), asked.tenant, asked.bulk_id)
        except BulkNotFound:
            return None

    @activity.defn(name=Activity.LIST_BULK_ITEMS)
    async def list_bulk_items(self, asked: ItemsRequest) -> BulkItems:
        """Return a page of items."""
        return await list_items(await self._database.pool(), asked.tenant, asked)


def planned(registry: Registry, command: BulkCommand, members: Members) -> BulkPlan:
    """Return the plan of a command to these dead letters, by the pipelines that this worker knows."""
    groups = planned_groups(registry, command, members)
    return BulkPlan(
        hash=plan_hash(command, members.digest),
        command=command,
        count=members.count,
        groups=groups,
        unsafe=unsafe_steps(groups),
    )


def judge(registry: Registry, start: BulkStart, members: Members) -> BulkPlan:
    """Return the plan of a start, or refuse it: the dead letters changed, or unsafe effects are not confirmed."""
    _check_size(members)
    plan = planned(registry, start.command, members)
    if plan.hash != start.plan_hash:
        raise PlanChanged(
            f"plan {start.plan_hash!r} does not hold any more: the dead letters it is about, or the command, have "
            f"changed ({members.count} dead letters now); plan it again"
        )
    if plan.unsafe and not start.allow_unsafe:
        raise UnsafeEffects(
            f"{', '.join(plan.unsafe)}: running again repeats effects that no key guards; say yes to that "
            "(`allow_unsafe`, `--allow-unsafe`), or choose other dead letters"
        )
    return plan


def _check_size(members: Members) -> None:
    if members.count == 0:
        raise InvalidInput("no open dead letter fits the selection: there is nothing to do")
    if members.count > ITEMS_LIMIT:
        raise InvalidInput(f"more than {ITEMS_LIMIT} dead letters fit, the limit: choose fewer, by time say")


def planned_groups(registry: Registry, command: BulkCommand, members: Members) -> list[PlannedGroup]:
    """Return what happens for each pipeline and step, by the pipelines that this worker knows."""
    return [_group(registry, command, *group) for group in members.groups]


def unsafe_steps(groups: list[PlannedGroup]) -> list[str]:
    """Return the steps that run again and whose effects no idempotency key protects."""
    return sorted({step.name for group in groups for step in group.run_again if step.effect is Effect.UNSAFE})


def _group(registry: Registry, command: BulkCommand, pipeline: str, step: str, count: int) -> PlannedGroup:
    known = registry.pipelines.get(pipeline)
    names = [module.name for module in known.modules] if known else []
    note = None
    if step not in names:
        names, note = [step], f"pipeline {pipeline!r} of this worker has no step {step!r}: what follows is not known"
    dead = names.index(step)
    if command.verb is not Verb.REPLAY:
        later = names[dead + 1 :] if command.verb is Verb.RESOLVE else []
        return PlannedGroup(pipeline=pipeline, step=step, count=count, afterwards=later, note=note)
    first = command.from_step or step
    if first not in names[: dead + 1]:
        note = f"from_step {first!r} is not one of the steps up to {step!r}: these will be skipped"
        return PlannedGroup(pipeline=pipeline, step=step, count=count, note=note)
    return PlannedGroup(
        pipeline=pipeline,
        step=step,
        count=count,
        run_again=[_step(registry, name) for name in names[names.index(first) : dead + 1]],
        afterwards=names[dead + 1 :] if command.mode is Mode.FROM_STEP else [],
        note=note,
    )


def _step(registry: Registry, name: str) -> PlannedStep:
    module = registry.modules.get(name)
    return PlannedStep(name=name, effect=module.effect if module else None)
