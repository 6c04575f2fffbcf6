"""Edits against a module's input schema: which fields it does not know, and which ones were meant."""

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from redrive.edits import unknown_fields


class Place(BaseModel):
    """A nested model."""

    cost_centre: str = ""
    inner: "Place | None" = None


class Free(BaseModel):
    """Takes any field."""

    model_config = ConfigDict(extra="allow")

    known: int = 0


class Invoice(BaseModel):
    """An input."""

    item: str
    place: Place
    places: list[Place] = []
    free: Free | None = None
    notes: dict[str, str] = {}
    either: Place | int = 0


SCHEMA = Invoice.model_json_schema()

UNKNOWN: list[tuple[dict[str, Any], list[str]]] = [
    ({"item": "lamp", "place": {"cost_centre": "7"}}, []),
    ({"itme": "lamp"}, ["itme: the input has no such field; did you mean 'item'?"]),
    ({"place": {"cost_center": "7"}}, ["place.cost_center: the input has no such field; did you mean 'cost_centre'?"]),
    (
        {"place": {"inner": {"inner": {"cost": None}}}},
        ["place.inner.inner.cost: the input has no such field"],
    ),
    (
        {"places": [{"cost_centre": "1"}, {"cost_centr": "2"}]},
        ["places.1.cost_centr: the input has no such field; did you mean 'cost_centre'?"],
    ),
    ({"free": {"anything": 1}, "notes": {"any": "thing"}, "item": {"not": "checked here"}}, []),
    ({"either": {"zzz": 1}}, ["either.zzz: the input has no such field"]),
]


@pytest.mark.parametrize(("patch", "sentences"), UNKNOWN)
def test_unknown_fields_are_named_with_the_nearest_known_one(patch: dict[str, Any], sentences: list[str]) -> None:
    """At every depth; where a model takes any field, nothing is said."""
    assert [str(field) for field in unknown_fields(patch, SCHEMA)] == sentences


def test_very_many_or_very_deep_fields_are_bounded() -> None:
    """A hostile edit costs no more than its size."""
    assert len(unknown_fields({f"x{number}": 1 for number in range(1000)}, SCHEMA)) == 20
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"inner": deep}
    assert unknown_fields({"place": deep}, SCHEMA) == []
    assert unknown_fields({"place": 1}, {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}) == []
