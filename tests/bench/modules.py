"""The steps as Redrive modules, in pipelines of one step and of three."""

from redrive import ModuleContext, Pipeline, module
from tests.bench.models import Order, Receipt


@module("first")
async def first(ctx: ModuleContext, order: Order) -> Receipt:
    return Receipt(number=order.number)


@module("second")
async def second(ctx: ModuleContext, order: Order) -> Receipt:
    return Receipt(number=order.number)


@module("third")
async def third(ctx: ModuleContext, order: Order) -> Receipt:
    return Receipt(number=order.number)


PIPELINES = {1: Pipeline("bench-1", first), 3: Pipeline("bench-3", first, second, third)}
