"""What the steps of both contenders take and return."""

from pydantic import BaseModel


class Order(BaseModel):
    """What a step takes."""

    number: int
    customer: str


class Receipt(BaseModel):
    """What a step returns."""

    number: int
