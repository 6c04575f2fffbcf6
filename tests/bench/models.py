"""What the steps of all contenders take and return, and how DBOS is told its database."""

from pydantic import BaseModel


class Order(BaseModel):
    """What a step takes."""

    number: int
    customer: str


class Receipt(BaseModel):
    """What a step returns."""

    number: int


ORDER = Order(number=7, customer="c-1")
DBOS_URL = "BENCH_DBOS_URL"
