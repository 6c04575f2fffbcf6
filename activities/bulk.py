"""The side effects of a bulk operation: its plan, its record, and the commands to its dead letters.

The plan says how many items there are, which steps run again, and which effects that repeats. Commands are sent in legs
of some seconds.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial

from temporalio import activity
from temporalio.client import Client

from redrive.bulk import (
    ITEMS_LIMIT,
    Approval,
    ApprovalAnswer,
    BulkAnswer,
    BulkCommand,
    BulkControl,
    BulkControlRequest,
    BulkItems,
    BulkPlan,
    BulkProgress,
    BulkRequest,
    BulkStart,
    BulkView,
    ItemsRequest,
    ItemStatus,
    PlanAnswer,
    PlannedGroup,
    PlannedStep,
    item_command,
    plan_hash,
    room,
    stop_reason,
)
from redrive.contracts import Activity, Effect
from redrive.dead_letter_client import DeadLetters
from redrive.dead_letters import Mode, Verb
from redrive.errors import (
    ApprovalNotFound,
    BulkNotFound,
    BulkRefused,
    InvalidInput,
    PlanChanged,
    RedriveError,
    SameApprover,
    Unavailable,
    UnsafeEffects,
)
from redrive.logs import get_logger
from redrive.metrics import Metrics
from redrive.modules import Registry
from redrive.postgres.database import Database
from redrive.postgres.tenancy import Pool
from redrive.redaction.redactor import Redactor
from redrive.store.approvals import PlanWaits, Yes, approve, ask_plan_approval
from redrive.store.bulk import items as bulk_items
from redrive.store.bulk import operations as bulks
from redrive.store.bulk.items import SentItem
from redrive.store.bulk.operations import Members, find_members, get_bulk, list_items
from redrive.token_bucket import TokenBucket

# The duration of one leg: after it, the workflow reports progress.
LEG = timedelta(seconds=20)
# How often to poll for outcomes and to send items in place of those that ended.
ROUND = timedelta(milliseconds=250)

log = get_logger(__name__)


class BulkActivities:
    """Run bulk operations."""

    def __init__(
        self,
        client: Client,
        database: Database,
        registry: Registry,
        redactor: Redactor,
        metrics: Metrics,
        *,
        task_queue: str,
        approvals: bool,
    ) -> None:
        self._letters = DeadLetters(client, task_queue)
        self._database = database
        self._registry = registry
        self._redactor = redactor
        self._metrics = metrics
        self._approvals = approvals

    @activity.defn(name=Activity.OPEN_BULK)
    async def open_bulk(self, start: BulkStart) -> BulkAnswer:
        """Fix the membership of a bulk operation, or refuse it; an existing one continues."""
        pool = await self._database.pool()
        bulk_id, tenant = start.bulk_id, start.command.tenant
        written = start.model_copy(update={"reason": self._redactor.text(start.reason)})
        try:
            progress, is_new = await bulks.open_bulk(
                pool,
                written,
                partial(judge, self._registry, start),
                # Approval is needed if either side demands it: one process's settings do not override another's.
                approvals=self._approvals or start.needs_approval,
            )
        except RedriveError as error:
            if isinstance(error, Unavailable):
                raise
            await self._put_refused(pool, written, error)
            log.warning("bulk.refused", bulk_id=bulk_id, tenant_id=tenant, user_id=start.requested_by, error=str(error))
            return BulkAnswer(bulk_id=bulk_id, accepted=False, message=str(error), code=error.code)
        if is_new:
            log.info(
                "bulk.started",
                bulk_id=bulk_id,
                tenant_id=tenant,
                operation=start.command.verb.value,
                user_id=start.requested_by,
                count=progress.total,
            )
        message = f"{progress.total} dead letters" if is_new else f"{progress.total} dead letters, begun before"
        return BulkAnswer(bulk_id=bulk_id, accepted=True, message=message, status=progress.status)

    async def _put_refused(self, pool: Pool, start: BulkStart, error: RedriveError) -> None:
        if isinstance(error, PlanWaits):
            plan = await self._redactor.value_aside(error.plan.model_dump(mode="json"))
            await ask_plan_approval(pool, start, plan)
        else:
            await bulks.put_refused(pool, start, error.code, str(error))

    @activity.defn(name=Activity.ADVANCE_BULK)
    async def advance_bulk(self, start: BulkStart) -> BulkProgress:
        """Send commands and collect outcomes, for some seconds or until nothing is left to do."""
        leg = _Leg(start, await self._database.pool(), self._letters, self._metrics)
        try:
            return await leg.run()
        except ExceptionGroup as group:
            # The first error is the cause; the others are what it interrupted.
            raise group.exceptions[0] from group

    @activity.defn(name=Activity.CONTROL_BULK)
    async def control_bulk(self, given: BulkControlRequest) -> BulkAnswer:
        """Pause, resume or stop, and record who did it and why."""
        command = given.command.model_copy(update={"reason": self._redactor.text(given.command.reason)})
        try:
            status = await bulks.control_bulk(
                await self._database.pool(), given.model_copy(update={"command": command})
            )
        except (BulkNotFound, BulkRefused) as error:
            return BulkAnswer(bulk_id=given.bulk_id, accepted=False, message=str(error), code=error.code)
        log.info(
            "bulk.controlled",
            bulk_id=given.bulk_id,
            tenant_id=given.tenant,
            operation=given.control.value,
            user_id=given.command.requested_by,
        )
        return BulkAnswer(bulk_id=given.bulk_id, accepted=True, message=_TOLD[given.control], status=status)

    @activity.defn(name=Activity.FINISH_BULK)
    async def finish_bulk(self, start: BulkStart) -> BulkProgress:
        """Record that a bulk operation has ended."""
        progress = await bulks.finish_bulk(await self._database.pool(), start.command.tenant, start.bulk_id)
        log.info(
            "bulk.finished",
            bulk_id=start.bulk_id,
            tenant_id=start.command.tenant,
            status=progress.status.value,
            applied=progress.applied,
            skipped=progress.skipped,
            failed=progress.failed,
        )
        return progress


_TOLD = {
    BulkControl.START: "started",
    BulkControl.PAUSE: "paused: what is under way ends, nothing more is sent",
    BulkControl.RESUME: "resumed",
    BulkControl.STOP: "stopped: what is under way ends, the rest is skipped",
}


class _Leg:
    """One leg of a bulk operation. All its state is in Postgres, for the next leg and for a retry after a crash."""

    def __init__(self, start: BulkStart, pool: Pool, letters: DeadLetters, metrics: Metrics) -> None:
        self._start = start
        self._pool = pool
        self._letters = letters
        self._metrics = metrics
        self._sending: set[int] = set()
        self._bucket: TokenBucket | None = None

    async def run(self) -> BulkProgress:
        loop = asyncio.get_running_loop()
        ends = loop.time() + LEG.total_seconds()
        async with asyncio.TaskGroup() as tasks:
            while True:
                progress = await self._settle()
                activity.heartbeat()
                if self._is_over(progress) or (loop.time() > ends and not self._sending):
                    return progress
                if loop.time() <= ends:
                    for item in await self._next(progress, loop.time()):
                        self._sending.add(item.position)
                        tasks.create_task(self._send(item))
                await asyncio.sleep(ROUND.total_seconds())

    def _is_over(self, progress: BulkProgress) -> bool:
        return progress.finished or progress.idle or stop_reason(progress, self._start.command) is not None

    async def _settle(self) -> BulkProgress:
        progress, ended = await bulk_items.settle(self._pool, self._start.command.tenant, self._start.bulk_id)
        for status in ended:
            self._count(status)
        return progress

    async def _next(self, progress: BulkProgress, now: float) -> list[SentItem]:
        self._bucket = self._bucket or TokenBucket(self._start.command.rate, progress.since_sent)
        free = self._bucket.take(now, room(progress, self._start.command))
        # Items in `sending` that are not ours belong to a worker that died, or to one that writes the same.
        if not free and progress.sending <= len(self._sending):
            return []
        return await bulk_items.claim(
            self._pool, self._start.command.tenant, self._start.bulk_id, room=free, known=self._sending
        )

    async def _send(self, item: SentItem) -> None:
        command = item_command(self._start, item.letter_id)
        try:
            answer = await self._letters.send(item.letter, command)
        except Unavailable as error:
            if await bulk_items.put_unanswered(self._pool, item, str(error)):
                self._count(ItemStatus.FAILED)
        else:
            if not answer.accepted:
                await bulk_items.put_skipped(self._pool, item, answer.message)
                self._count(ItemStatus.SKIPPED)
            elif command.verb is Verb.REPLAY:
                await bulk_items.put_accepted(self._pool, item, ItemStatus.ACCEPTED, answer.message)
            else:
                await bulk_items.put_accepted(self._pool, item, ItemStatus.APPLIED, answer.message)
                self._count(ItemStatus.APPLIED)
        self._sending.discard(item.position)

    def _count(self, status: ItemStatus) -> None:
        self._metrics.bulk_item(self._start.command.verb.value, status.value)


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
