"""The side effects of a bulk operation: its plan, its record, and the commands to its dead letters.

The plan says how many items there are, which steps run again, and which effects that repeats. Commands are sent in legs
of some seconds.
"""

import asyncio
from datetime import timedelta
from functools import partial

from temporalio import activity
from temporalio.client import Client

from redrive.bulk import (
    Approval,
    ApprovalAnswer,
    BulkAnswer,
    BulkCommand,
    BulkControl,
    BulkControlRequest,
    BulkItems,
    BulkProgress,
    BulkRequest,
    BulkStart,
    BulkView,
    ItemsRequest,
    ItemStatus,
    PlanAnswer,
    item_command,
    room,
    stop_reason,
)
from redrive.contracts import Activity
from redrive.dead_letter_client import DeadLetters
from redrive.dead_letters import Answer, Verb
from redrive.errors import (
    ApprovalNotFound,
    BulkNotFound,
    BulkRefused,
    InvalidInput,
    RedriveError,
    SameApprover,
    Unavailable,
)
from redrive.logs import get_logger
from redrive.metrics import Metrics
from redrive.modules import Registry
from redrive.postgres.database import Database
from redrive.postgres.tenancy import Pool
from redrive.redaction.redactor import Redactor
from redrive.store.approvals import PlanWaits, approve_bulk, ask_plan_approval
from redrive.store.bulk import items as bulk_items
from redrive.store.bulk import operations as bulks
from redrive.store.bulk.items import SentItem
from redrive.store.bulk.lists import get_bulk, list_items
from redrive.store.bulk.plans import KnownSteps, judge, plan_bulk
from redrive.token_bucket import TokenBucket

# The duration of one leg: after it, the workflow reports progress.
LEG = timedelta(seconds=20)
# How often to poll for answers and outcomes, and to send items in place of those that ended; rarer if that takes long.
ROUND = timedelta(milliseconds=100)
WAITING_SHARE = 3
# How long to wait for an answer in the audit log before the run is asked for it.
ASK_AFTER = timedelta(seconds=5)

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
                partial(judge, known_steps(self._registry), start),
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
        # By position: set when the audit log has the answer.
        self._sending: dict[int, asyncio.Event] = {}
        self._bucket: TokenBucket | None = None

    async def run(self) -> BulkProgress:
        loop = asyncio.get_running_loop()
        ends = loop.time() + LEG.total_seconds()
        async with asyncio.TaskGroup() as tasks:
            while True:
                began = loop.time()
                progress = await self._settle()
                activity.heartbeat()
                if self._is_over(progress) or (loop.time() > ends and not self._sending):
                    return progress
                if loop.time() <= ends:
                    for item in await self._next(progress, loop.time()):
                        self._sending[item.position] = asyncio.Event()
                        tasks.create_task(self._send(item))
                await asyncio.sleep(max(ROUND.total_seconds(), WAITING_SHARE * (loop.time() - began)))

    def _is_over(self, progress: BulkProgress) -> bool:
        return progress.finished or progress.idle or stop_reason(progress, self._start.command) is not None

    async def _settle(self) -> BulkProgress:
        settled = await bulk_items.settle(self._pool, self._start.command.tenant, self._start.bulk_id)
        for position in settled.answered:
            if position in self._sending:
                self._sending[position].set()
        for status in settled.ended:
            self._count(status)
        return settled.progress

    async def _next(self, progress: BulkProgress, now: float) -> list[SentItem]:
        self._bucket = self._bucket or TokenBucket(self._start.command.rate, progress.since_sent)
        free = self._bucket.take(now, room(progress, self._start.command))
        # Items in `sending` that are not ours belong to a worker that died, or to one that writes the same.
        if not free and progress.sending <= len(self._sending):
            return []
        return await bulk_items.claim(
            self._pool, self._start.command.tenant, self._start.bulk_id, room=free, known=set(self._sending)
        )

    async def _send(self, item: SentItem) -> None:
        """Have one item's command answered, or find out that it is not."""
        command = item_command(self._start, item.letter_id)
        try:
            if not (await self._letters.tell(item.letter, command) and await self._is_answered(item)):
                await self._take(item, command.verb, await self._letters.send(item.letter, command))
        except Unavailable as error:
            if await bulk_items.put_unanswered(self._pool, item, str(error)):
                self._count(ItemStatus.FAILED)
        del self._sending[item.position]

    async def _is_answered(self, item: SentItem) -> bool:
        """Wait until the records have the answer; not long, for a run that ended at this moment writes none."""
        try:
            async with asyncio.timeout(ASK_AFTER.total_seconds()):
                return await self._sending[item.position].wait()
        except TimeoutError:
            return False

    async def _take(self, item: SentItem, verb: Verb, answer: Answer) -> None:
        if not answer.accepted:
            status, is_new = ItemStatus.SKIPPED, await bulk_items.put_skipped(self._pool, item, answer.message)
        else:
            status = ItemStatus.ACCEPTED if verb is Verb.REPLAY else ItemStatus.APPLIED
            is_new = await bulk_items.put_accepted(self._pool, item, status, answer.message)
        if is_new and status is not ItemStatus.ACCEPTED:
            self._count(status)

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
        try:
            plan = await plan_bulk(await self._database.pool(), known_steps(self._registry), command)
        except InvalidInput as error:
            return PlanAnswer(problem=str(error), code=error.code)
        return PlanAnswer(plan=plan.model_copy(update={"approval_needed": self._approvals}))

    @activity.defn(name=Activity.APPROVE_BULK)
    async def approve_bulk(self, approval: Approval) -> ApprovalAnswer:
        """Record an approval of a plan, or say why it does not count."""
        try:
            await approve_bulk(await self._database.pool(), self._redactor, approval)
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


def known_steps(registry: Registry) -> KnownSteps:
    """Return what a plan needs of the pipelines that this worker knows."""
    return KnownSteps(
        pipelines={name: [module.name for module in pipeline.modules] for name, pipeline in registry.pipelines.items()},
        effects={name: module.effect for name, module in registry.modules.items()},
    )
