"""The steps as Redrive modules, in pipelines of one step, of three and of ten, ordinary and fast."""

from datetime import timedelta

from redrive import ModuleContext, Pipeline, module
from tests.bench.models import Order, Receipt

# What a fast step needs; an ordinary one costs the same with it.
TIMEOUT = timedelta(seconds=5)


async def _step(ctx: ModuleContext, order: Order) -> Receipt:
    return Receipt(number=order.number)


MODULES = [module(f"step-{number}", timeout=TIMEOUT)(_step) for number in range(1, 11)]
PIPELINES = {steps: Pipeline(f"bench-{steps}", *MODULES[:steps]) for steps in (1, 3, 10)}
FAST_PIPELINES = {steps: Pipeline(f"bench-{steps}-fast", *MODULES[:steps], fast=True) for steps in (1, 3, 10)}
