"""The rules of input models, as processes without the models' code have them."""

import json
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import to_json

from redrive.documents import validation_sentence
from redrive.input_rules import model_rules, rules_validator


class Colour(StrEnum):
    """A choice."""

    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    """A model in a model, that holds itself."""

    price: Decimal = Field(ge=0)
    type: str = ""
    parts: list["Item"] = []


class Order(BaseModel):
    """One of everything that has rules."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)

    number: int
    name: str = Field(default="x", max_length=3, pattern="^x+$")
    items: list[Item] = Field(default_factory=list, max_length=2)
    by_name: dict[str, Item] = {}
    other: Item | None = None
    colour: Colour = Colour.RED
    size: Literal["s", "m"] = "s"
    at: datetime | None = None
    either: int | bool = 1
    aliased: int = Field(default=1, validation_alias=AliasChoices("one", "two"))


class Strict(BaseModel):
    """Takes no text for a number."""

    model_config = ConfigDict(strict=True)

    number: int


class Numbers(RootModel[list[int]]):
    """Not an object."""


class Coded(BaseModel):
    """Everything is code here."""

    number: Annotated[int, BeforeValidator(len)]
    even: int = 0

    @field_validator("even", mode="after")
    @classmethod
    def _even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("odd")
        return value


class Rewritten(BaseModel):
    """Changes its input before it is checked."""

    number: int

    @model_validator(mode="before")
    @classmethod
    def _number(cls, _given: Any) -> Any:
        return {"number": 1}


def _problem(validate: Any, document: Any) -> str | None:
    try:
        validate(to_json(document))
    except ValidationError as error:
        return validation_sentence(error)
    return None


ORDERS: list[dict[str, Any]] = [
    {},
    {"number": "5"},
    {"number": 5.0},
    {"number": "many"},
    {"number": None},
    {"name": "xxxx"},
    {"name": "y"},
    {"name": " x "},
    {"items": [{"price": -1}]},
    {"items": [{"price": "x"}, {}, {}]},
    {"items": [{"price": 1, "type": 3, "parts": [{"price": []}]}]},
    {"items": {}},
    {"by_name": {"a": 3}},
    {"other": 4},
    {"other": None},
    {"colour": "green"},
    {"colour": "blue"},
    {"size": "l"},
    {"at": "yesterday"},
    {"at": 0},
    {"either": "x"},
    {"either": "yes"},
    {"one": "x"},
    {"two": "y"},
    {"unknown": 1},
]


@pytest.mark.parametrize("document", [{"number": 1} | each for each in ORDERS] + [{}], ids=str)
def test_rules_refuse_what_the_model_refuses_with_the_same_sentence(document: dict[str, Any]) -> None:
    """Both take what pydantic takes, also a text for a number, which a JSON schema would refuse."""
    rules, is_complete = model_rules(Order)
    validator = rules_validator(json.loads(json.dumps(rules)))
    assert is_complete
    assert _problem(validator.validate_json, document) == _problem(Order.model_validate_json, document)


@pytest.mark.parametrize(
    ("model", "document"),
    [(Strict, {"number": "5"}), (Strict, {"number": 5}), (Numbers, [1, "x"]), (Numbers, [1, "2"]), (Numbers, {})],
    ids=str,
)
def test_rules_of_other_kinds_of_models_are_theirs(model: type[BaseModel], document: Any) -> None:
    """Strict models and models of a list."""
    rules, is_complete = model_rules(model)
    validator = rules_validator(json.loads(json.dumps(rules)))
    assert is_complete
    assert _problem(validator.validate_json, document) == _problem(model.model_validate_json, document)


def test_what_code_decides_is_left_to_code() -> None:
    """A value that a validator may change is not refused; what a later one may refuse is not known to fit."""
    rules, is_complete = model_rules(Coded)
    validator = rules_validator(rules)
    assert not is_complete
    assert _problem(validator.validate_json, {"number": "four", "even": 3}) is None
    assert _problem(validator.validate_json, {"even": "x"}) == _problem(Coded.model_validate_json, {"even": "x"})
    anything, is_complete = model_rules(Rewritten)
    assert (anything, is_complete) == ({"type": "any"}, False)


def test_rules_are_the_same_in_every_process() -> None:
    """Workers of one build publish one catalog: no address in memory is in it."""

    def made() -> Any:
        class Inner(BaseModel):
            n: int

        class Outer(BaseModel):
            one: Inner
            two: list[Inner]

        return model_rules(Outer)

    assert made() == made()
