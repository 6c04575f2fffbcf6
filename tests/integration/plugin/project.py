"""A project as people have it: its workflows and activities. The activities fail as a test says."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, ApplicationErrorCategory

with workflow.unsafe.imports_passed_through():
    from temporalio.client import Client
    from temporalio.worker import Worker

from redrive.plugin import errors_raised, no_dead_letters

ONCE = RetryPolicy(maximum_attempts=1)
QUICK: dict[str, Any] = {"start_to_close_timeout": timedelta(seconds=10), "retry_policy": ONCE}


@dataclass
class Order:
    """What an order is about."""

    case: str
    id: str
    amount: int = 1
    items: list[str] = field(default_factory=list)


@dataclass
class Receipt:
    """What a charge returns."""

    id: str
    amount: int


@dataclass
class Outside:
    """The outside world of one case."""

    broken: set[str] = field(default_factory=set)
    error: BaseException | None = None
    calls: list[tuple[str, Any, str]] = field(default_factory=list)

    def called(self, name: str) -> list[Any]:
        """What an activity was called with."""
        return [given for called, given, _ in self.calls if called == name]


CASES: dict[str, Outside] = {}


def _call(case: str, name: str, given: Any) -> None:
    outside = CASES[case]
    outside.calls.append((name, given, activity.info().activity_id))
    if name in outside.broken:
        raise outside.error or RuntimeError(f"{name} is broken, password=hunter22")


@activity.defn
async def charge(order: Order) -> Receipt:
    """Charge an order."""
    _call(order.case, "charge", order)
    return Receipt(order.id, order.amount)


@activity.defn
async def ship(case: str, order_id: str, days: int) -> str:
    """Ship an order."""
    _call(case, f"ship-{order_id}" if f"ship-{order_id}" in CASES[case].broken else "ship", (order_id, days))
    return f"shipped {order_id} in {days}"


@activity.defn
async def refund(order: Order) -> None:
    """Undo a charge."""
    _call(order.case, "refund", order)


ACTIVITIES: list[Callable[..., Any]] = [charge, ship, refund]


@workflow.defn
class OrderWorkflow:
    """Charge, ship, and undo the charge if shipping fails."""

    @workflow.run
    async def run(self, order: Order) -> str:
        receipt = await workflow.execute_activity(charge, order, **QUICK)
        try:
            shipped = await workflow.execute_activity(ship, args=[order.case, order.id, 3], **QUICK)
        except ActivityError:
            await workflow.execute_activity(refund, order, **QUICK)
            raise
        return f"{receipt.amount}: {shipped}"


@workflow.defn
class LocalWorkflow:
    """Charge by a local activity."""

    @workflow.run
    async def run(self, order: Order) -> int:
        receipt: Receipt = await workflow.execute_local_activity(
            charge, order, start_to_close_timeout=timedelta(seconds=5), retry_policy=ONCE
        )
        return receipt.amount


@workflow.defn
class FailingChild:
    """Fail as the activity `charge` of the case would."""

    @workflow.run
    async def run(self, order: Order) -> int:
        with errors_raised():
            try:
                receipt: Receipt = await workflow.execute_activity(charge, order, **QUICK)
            except ActivityError as error:
                raise ApplicationError("the child failed", type="ChildFailed") from error
        return receipt.amount


@workflow.defn
class ParentWorkflow:
    """Have a child do it."""

    @workflow.run
    async def run(self, order: Order) -> int:
        return await workflow.execute_child_workflow(FailingChild.run, order, id=f"child-{order.case}")


@workflow.defn
class ParallelWorkflow:
    """Ship many at once."""

    @workflow.run
    async def run(self, case: str, count: int) -> list[str]:
        return list(
            await asyncio.gather(
                *(workflow.execute_activity(ship, args=[case, str(number), number], **QUICK) for number in range(count))
            )
        )


@workflow.defn
class ImpatientWorkflow:
    """Wait for a charge no longer than a moment."""

    @workflow.run
    async def run(self, order: Order) -> str:
        handle = workflow.start_activity(charge, order, **QUICK)
        try:
            await asyncio.wait_for(handle, 1)
        except (TimeoutError, ActivityError) as error:
            return type(error).__name__
        return "charged"


@workflow.defn
class FallbackWorkflow:
    """Take another way when the first fails."""

    @workflow.run
    async def run(self, order: Order) -> str:
        with errors_raised():
            try:
                await workflow.execute_activity(charge, order, **QUICK)
            except ActivityError:
                return "fell back"
        return "charged"


@no_dead_letters
@workflow.defn
class PlainWorkflow:
    """A workflow that is left alone."""

    @workflow.run
    async def run(self, order: Order) -> str:
        try:
            await workflow.execute_activity(charge, order, **QUICK)
        except ActivityError:
            return "raised"
        return "charged"


@workflow.defn
class RestlessWorkflow:
    """Continue as new while a charge is parked."""

    @workflow.run
    async def run(self, order: Order, again: bool) -> str:
        if again:
            return "second"
        handle = workflow.start_activity(charge, order, **QUICK)
        await workflow.wait([handle], timeout=1)
        workflow.continue_as_new(args=[order, True])
        return "first"


@workflow.defn
class WholeWorkflow:
    """Fail by itself, when its amount is not positive."""

    @workflow.run
    async def run(self, order: Order) -> int:
        if order.amount == 0:
            raise ValueError("nothing to charge")
        if order.amount < 0:
            raise ApplicationError("a negative amount", type="Negative")
        return order.amount


@workflow.defn
class RacingWorkflow:
    """Do what many do: timers against activities, wait, shield, as_completed, a task group, handles awaited twice."""

    @workflow.run
    async def run(self, case: str, moments: list[float]) -> list[str]:
        done: list[str] = []

        async def one(number: int) -> None:
            handle = workflow.start_activity(ship, args=[case, str(number), number], **QUICK)
            await asyncio.shield(handle)
            done.append(await handle)

        async def moment(seconds: float) -> None:
            await asyncio.sleep(seconds)
            done.append(f"slept {seconds}")

        async with asyncio.TaskGroup() as group:
            for number, seconds in enumerate(moments):
                group.create_task(one(number))
                group.create_task(moment(seconds))
        handles = [workflow.start_activity(ship, args=[case, name, 1], **QUICK) for name in ("x", "y", "z")]
        local = workflow.start_local_activity(
            ship, args=[case, "local", 1], start_to_close_timeout=timedelta(seconds=5), retry_policy=ONCE
        )
        first, rest = await workflow.wait([*handles, local], return_when=asyncio.FIRST_COMPLETED, timeout=30)
        done.append(f"{len(first)} {len(rest)}")
        done += [await each for each in workflow.as_completed([*handles, local])]
        return [*done, *(handle.result() for handle in handles)]


@workflow.defn
class FirstWorkflow:
    """Take what ends first of an activity, one that fails, a child, a timer and a signal; cancel what is left."""

    def __init__(self) -> None:
        self._signalled = False

    @workflow.signal
    def go(self) -> None:
        """Let the wait for a signal end."""
        self._signalled = True

    @workflow.run
    async def run(self, order: Order, names: list[str]) -> list[str]:
        child = f"child-of-{order.case}-{'-'.join(names)}"
        racers = {asyncio.ensure_future(await self._racer(name, order, child)): name for name in names}
        first, rest = await workflow.wait(list(racers), return_when=asyncio.FIRST_COMPLETED)
        for racer in rest:
            racer.cancel()
        await asyncio.gather(*racers, return_exceptions=True)
        return [name for racer, name in racers.items() if racer in first]

    async def _racer(self, name: str, order: Order, child: str) -> Any:
        match name:
            case "activity":
                return workflow.start_activity(ship, args=[order.case, "1", 1], **QUICK)
            case "failing":
                return workflow.start_activity(charge, order, **QUICK)
            case "child":
                queue = f"{workflow.info().task_queue}-child"
                return await workflow.start_child_workflow(FailingChild.run, order, id=child, task_queue=queue)
            case "timer":
                return asyncio.sleep(5)
        return workflow.wait_condition(lambda: self._signalled)


@workflow.defn
class CarelessWorkflow:
    """Change an argument after the activity was started."""

    @workflow.run
    async def run(self, order: Order) -> int:
        handle = workflow.start_activity(charge, order, **QUICK)
        order.amount = 99
        receipt: Receipt = await handle
        return receipt.amount


@workflow.defn
class RefundWorkflow:
    """Try as often as Temporal does by default."""

    @workflow.run
    async def run(self, order: Order) -> str:
        await workflow.execute_activity(refund, order, start_to_close_timeout=timedelta(seconds=10))
        return "refunded"


BENIGN = ApplicationError("expected", type="Expected", category=ApplicationErrorCategory.BENIGN)
WORKFLOWS = [
    OrderWorkflow,
    LocalWorkflow,
    FailingChild,
    ParentWorkflow,
    ParallelWorkflow,
    ImpatientWorkflow,
    FallbackWorkflow,
    PlainWorkflow,
    RestlessWorkflow,
    WholeWorkflow,
    RacingWorkflow,
    FirstWorkflow,
    CarelessWorkflow,
    RefundWorkflow,
]


def plain_worker(client: Client, queue: str) -> Worker:
    """Return the project's worker without the plugin."""
    return Worker(client, task_queue=queue, workflows=WORKFLOWS, activities=ACTIVITIES, build_id="tests")
