"""The steps as plain Temporal activities."""

from temporalio import activity

from tests.bench.models import Order, Receipt


@activity.defn
async def first(order: Order) -> Receipt:
    return Receipt(number=order.number)


@activity.defn
async def second(order: Order) -> Receipt:
    return Receipt(number=order.number)


@activity.defn
async def third(order: Order) -> Receipt:
    return Receipt(number=order.number)


STEPS = [first, second, third]
