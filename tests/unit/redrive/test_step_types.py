"""What a pipeline says at the worker's start about steps whose types do not fit."""

from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel, Field

from redrive import ModuleContext, Pipeline, Registry


class Charge(BaseModel):
    """What the first step returns."""

    id: str
    amount: int
    on: date = date(2026, 1, 1)
    lines: list[int] = []


class Same(BaseModel):
    """Reads it whole."""

    charge: Charge


class Less(BaseModel):
    """A part of it."""

    id: str
    amount: float


class ReadsLess(BaseModel):
    """Reads a part."""

    charge: Less
    other: int = 0


class Longer(BaseModel):
    """More than is there."""

    id: str
    currency: str


class ReadsMore(BaseModel):
    """Reads what is not there."""

    charge: Longer


class Wrong(BaseModel):
    """Another type."""

    amount: str


class ReadsWrong(BaseModel):
    """Reads a number as a text."""

    charge: Wrong


class ReadsText(BaseModel):
    """Reads an object as a text."""

    charge: str


class ReadsAny(BaseModel):
    """Reads anything."""

    charge: Any
    number: int = Field(default=0)


class Nested(BaseModel):
    """Has the wrong part deep below."""

    class Inner(BaseModel):
        """The inner model."""

        lines: dict[str, int]

    charge: Inner


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (Same, None),
        (ReadsLess, None),
        (ReadsAny, None),
        (ReadsMore, "charge.currency is required, and is not there"),
        (ReadsWrong, "charge.amount is of type integer, not string"),
        (ReadsText, "charge is of type object, not string"),
        (Nested, "charge.lines is of type array, not object"),
    ],
)
def test_a_step_that_cannot_read_an_earlier_output_is_told(model: type[BaseModel], problem: str | None) -> None:
    """The sentence names both steps and the field; what pydantic may be able to read is not held against it."""
    registry = Registry()

    @registry.module("charge")
    async def charge(ctx: ModuleContext, given: Less) -> Charge:
        return Charge(id="", amount=0)

    async def ship(ctx: ModuleContext, given: Any) -> Charge:
        return Charge(id="", amount=0)

    ship.__annotations__["given"] = model
    Pipeline("order", charge, registry.module("ship")(ship), registry=registry)
    expected = [("order", f"step 'ship' cannot read the output of 'charge': {problem}")] if problem else []
    assert list(registry.misfits()) == expected
