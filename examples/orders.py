"""Three steps that call a flaky service: reserve the goods, charge the customer, book the shipment.

The service is named `shop`; where it is and how to sign in to it is configuration:
`REDRIVE_SERVICES='{"shop": {"base_url": "https://shop.internal", "token": "…"}}'`. Every call carries an idempotency
key that stays the same over all attempts, so a service that honours it does the work once.
"""

from datetime import timedelta

from pydantic import BaseModel, Field

from redrive import SERVICE_CALL, ModuleContext, Pipeline, module

# A customer waits at the counter: one more attempt than the preset, and two seconds for an answer.
POLICY = SERVICE_CALL.model_copy(update={"max_attempts": 4, "timeout": timedelta(seconds=2)})


class Order(BaseModel):
    """What the caller sends: the payload of the run."""

    item: str = Field(min_length=1)
    quantity: int = Field(ge=1, le=100)


class Reservation(BaseModel):
    """Goods that are set aside."""

    reservation_id: str
    price_cents: int


class ToCharge(BaseModel):
    """Read from the run's document: the payload's fields, and the output of the step `reserve` under its name."""

    item: str
    reserve: Reservation


class Charge(BaseModel):
    """Money taken."""

    charge_id: str


class ToShip(BaseModel):
    """The outputs of both earlier steps."""

    reserve: Reservation
    charge: Charge


class Shipment(BaseModel):
    """The parcel's number: the run's result."""

    tracking_id: str


@module("reserve", policy=POLICY)
async def reserve(ctx: ModuleContext, order: Order) -> Reservation:
    """Set the goods aside."""
    shop = ctx.http.service("shop")
    return await shop.post("/reserve", operation="reserve", json=order.model_dump(), returns=Reservation)


@module("charge", policy=POLICY)
async def charge(ctx: ModuleContext, given: ToCharge) -> Charge:
    """Take the money."""
    shop = ctx.http.service("shop")
    body = {"item": given.item, "amount_cents": given.reserve.price_cents}
    return await shop.post("/charge", operation="charge", json=body, returns=Charge)


@module("ship", policy=POLICY)
async def ship(ctx: ModuleContext, given: ToShip) -> Shipment:
    """Book the shipment."""
    shop = ctx.http.service("shop")
    body = {"reservation_id": given.reserve.reservation_id, "charge_id": given.charge.charge_id}
    return await shop.post("/ship", operation="ship", json=body, returns=Shipment)


Pipeline("order", reserve, charge, ship)
