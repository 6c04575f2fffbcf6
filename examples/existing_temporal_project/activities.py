"""What the project does to the outside."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from temporalio import activity

# While this file is there, the card provider does not answer. It stands for somebody else's outage.
OUTAGE = Path("provider-is-down")


@dataclass
class Order:
    """What a customer ordered."""

    id: str
    cents: int
    items: list[str]


@activity.defn
async def reserve(item: str) -> str:
    """Reserve one item in the warehouse."""
    await asyncio.sleep(0.01)
    return f"{item} is reserved"


@activity.defn
async def charge(order: Order) -> str:
    """Charge the customer's card."""
    if OUTAGE.exists():
        raise ConnectionError("the card provider does not answer")
    return f"{order.cents} cents are charged"


@activity.defn
async def ship(order_id: str) -> str:
    """Ship the order."""
    return f"{order_id} is shipped"
