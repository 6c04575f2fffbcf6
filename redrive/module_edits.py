"""What operators give in place of what a module was given or returns: checked against the module's models. Pure."""

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from redrive.contracts import PAYLOAD_LIMIT, RESULT_LIMIT
from redrive.documents import json_size, patched, validation_sentence
from redrive.errors import InvalidInput
from redrive.modules import Module
from redrive.redaction.redactor import Redactor

Document = dict[str, Any]


def edited_input(
    module: Module[Any, Any], document: Document, patches: Sequence[Document], redactor: Redactor
) -> Document:
    """Return a module's input after edits, of which the last is new. Raise InvalidInput if it does not fit."""
    unknown = sorted(patches[-1].keys() - set(module.reads)) if module.reads is not None else []
    if unknown:
        known = ", ".join(module.reads or [])
        raise InvalidInput(f"input_patch.{unknown[0]}: {module.name!r} reads no such field; it reads {known}")
    edited = patched(document, patches)
    try:
        module.validate(edited)
    except ValidationError as error:
        sentence = validation_sentence(error, redactor)
        raise InvalidInput(f"input_patch: the edited input does not fit {module.name!r}: {sentence}") from None
    check_size("input_patch: the edited input", edited, PAYLOAD_LIMIT)
    return edited


def completed_output(module: Module[Any, Any], output: Any, redactor: Redactor) -> Any:
    """Return an output with its model's defaults, as the module would return it. Raise InvalidInput if it does not."""
    try:
        # Through JSON, as a module's own output.
        completed = module.output_model.model_validate_json(to_json(output)).model_dump(mode="json")
    except ValidationError as error:
        sentence = validation_sentence(error, redactor)
        raise InvalidInput(f"output: does not fit what {module.name!r} returns: {sentence}") from None
    check_size("output", completed, RESULT_LIMIT)
    return completed


def check_size(what: str, value: object, limit: int) -> None:
    """Raise InvalidInput if a value is too large."""
    size = json_size(value)
    if size > limit:
        raise InvalidInput(f"{what}: {size} bytes; the limit is {limit} (pass a reference to large data)")
