"""A module's result as JSON that Temporal can carry: it would retry a result that it cannot, effects included."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from redrive.activities.attempts import to_details
from redrive.categories import Category
from redrive.contracts import RESULT_LIMIT, Attempt
from redrive.documents import json_problem, number_problem
from redrive.errors import Terminal
from redrive.modules import Module


def plain_result(module: Module[Any, Any], output: object) -> Any:
    """Return a module's result as plain JSON, or end its step."""
    if not isinstance(output, module.output_model):
        wanted = module.output_model.__name__
        raise Terminal(
            f"module {module.name!r} returned {type(output).__name__}, not {wanted}", category=Category.SERIALIZATION
        )
    value = _plain(module, output)
    size = len(to_json(value))
    if size > RESULT_LIMIT:
        raise Terminal(
            f"module {module.name!r} returned {size} bytes; the limit is {RESULT_LIMIT} (return a reference)",
            category=Category.TOO_LARGE,
        )
    return value


def packed_result(value: Any, attempt: int, earlier: Sequence[Attempt]) -> RawValue:
    """Serialise the result of an attempt."""
    output = to_json(value)
    rest = to_json({"size": len(output), "attempt": attempt, "attempts": to_details(earlier)})
    # Assembled as bytes, so that a megabyte is copied once.
    data = b'{"output":' + output + b"," + rest.removeprefix(b"{")
    return RawValue(Payload(metadata={"encoding": b"json/plain"}, data=data))


def _plain(module: Module[Any, Any], output: BaseModel) -> Any:
    try:
        value = output.model_dump(mode="json")
    except (PydanticSerializationError, ValueError) as error:
        raise Terminal(
            f"module {module.name!r} returned what is not JSON: {error}", category=Category.SERIALIZATION
        ) from error
    problem = json_problem(value) or number_problem(output.model_dump())
    if problem:
        raise Terminal(f"module {module.name!r} returned{problem}", category=Category.SERIALIZATION)
    return value
