"""Checks an edited input while it is typed: against the module's schema, and as the edit that it makes. Pure.

The page shows a redacted input. Values that stay redacted are not part of the edit: the run keeps the originals.
"""

import asyncio
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import parse_qs

import jsonschema_rs
from fastapi import Request, Response
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from redrive.access import Right
from redrive.console.app_state import AppState, TheAppState
from redrive.console.authentication import Operator, Scope
from redrive.console.web.dead_letters import is_omitted
from redrive.console.web.render import show
from redrive.console.web.routes import page_router
from redrive.contracts import Name
from redrive.dead_letter_client import Plan
from redrive.dead_letters import Mode, ReplayOptions
from redrive.documents import changed_paths, parse_payload, validation_sentence
from redrive.edits import unknown_fields
from redrive.errors import InvalidInput, RedriveError
from redrive.levels import bounded, dotted, leaves, levels
from redrive.redaction.redactor import MARK
from redrive.store.dead_letters.lists import find_letter
from redrive.store.dead_letters.models import LetterRecord

Validator = jsonschema_rs.Draft202012Validator
_PROBLEMS_NAMED: Final = 8
# Up to this many elements, all problems of a document are found: each element may be one.
_SMALL: Final = 1000
# Each is serialised to look for redacted values in it.
_PROBLEMS_READ: Final = 100
_SENTENCE_SHOWN: Final = 500


@dataclass(frozen=True)
class Check:
    """The result of an edited text: the edit as a JSON Merge Patch, the fields it changes, and what does not fit.

    It is checked if the module's schema is known. Fields that it does not have are `unknown`: they do nothing.
    """

    patch: dict[str, Any] | None = None
    changed: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    can_be_sent: bool = True
    is_checked: bool = False


def check_input(shown: dict[str, Any], text: str, schema: dict[str, Any] | None) -> Check:
    """Compare an edited text with what was shown, and with the schema if it is known."""
    try:
        edited = parse_payload(text)
    except InvalidInput as error:
        return _unsendable([str(error).removeprefix("payload: ")])
    unclear = [dotted(names) for names in itertools.islice(_new_nulls(shown, edited), _PROBLEMS_NAMED)]
    if unclear:
        return _unsendable(f"{path}: null cannot be put in by an edit; leave the field out" for path in unclear)
    patch = merge_patch_between(shown, edited)
    covered = list(itertools.islice(_covered(patch), _PROBLEMS_NAMED)) if _holds_mark(patch) else []
    if covered:
        return _unsendable(f"{path}: would put {MARK} in place of true values; write them out" for path in covered)
    return Check(
        patch or None,
        changed_paths(patch),
        schema_problems(edited, schema) if schema else [],
        [str(each) for each in unknown_fields(patch, schema)] if schema else [],
        is_checked=schema is not None,
    )


def _covered(patch: dict[str, Any]) -> Iterator[str]:
    return (dotted(leaf.names) for leaf in leaves(patch) if _holds_mark(leaf.value))


def _holds_mark(value: Any) -> bool:
    return MARK.encode() in to_json(value)


def _unsendable(problems: Iterable[str]) -> Check:
    return Check(problems=list(problems), can_be_sent=False)


def merge_patch_between(shown: dict[str, Any], edited: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Merge Patch (RFC 7386) that turns one document into the other."""
    patch: dict[str, Any] = {name: None for name in shown if name not in edited}
    for name, value in edited.items():
        before = shown.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            # Without comparing them first: each level would compare all that is below it again.
            inner = merge_patch_between(before, value)
            if inner:
                patch[name] = inner
        elif name not in shown or not _same(value, before):
            patch[name] = value
    return patch


def _same(one: Any, other: Any) -> bool:
    """Compare JSON values: true is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other)


def _new_nulls(shown: dict[str, Any], edited: dict[str, Any]) -> Iterator[list[str]]:
    """Return the paths of fields that became null: a merge patch would remove them."""
    for leaf in leaves(edited):
        if leaf.value is None and not _holds_null(shown, leaf.names):
            yield leaf.names


def _holds_null(document: dict[str, Any], names: list[str]) -> bool:
    inner: Any = document
    for name in names:
        if not isinstance(inner, dict) or name not in inner:
            return False
        inner = inner[name]
    return inner is None


def schema_problems(document: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """Return where a document does not fit. A redacted value stands for one that did."""
    try:
        validator = Validator(
            # Its other engine for patterns can take exponential time on a crafted text.
            schema,
            retriever=_nothing_from_elsewhere,
            pattern_options=jsonschema_rs.RegexOptions(),
        )
    except ValueError:
        return []
    is_small = sum(level.count for level in levels(document)) <= _SMALL
    problems = _all_problems if is_small else _first_problem
    fitting = (error for error in problems(validator, document) if not _holds_mark(error.instance))
    return [_sentence(error) for error in itertools.islice(fitting, _PROBLEMS_NAMED)]


def _all_problems(validator: Validator, document: dict[str, Any]) -> Iterator[jsonschema_rs.ValidationError]:
    return itertools.islice(validator.iter_errors(document), _PROBLEMS_READ)


def _first_problem(validator: Validator, document: dict[str, Any]) -> Iterator[jsonschema_rs.ValidationError]:
    """Return one problem: finding the next would build all of them, and a large document can have many."""
    try:
        validator.validate(document)
    except jsonschema_rs.ValidationError as error:
        yield error


def _sentence(error: jsonschema_rs.ValidationError) -> str:
    place, message = dotted([str(part) for part in error.instance_path]), bounded(error.message, _SENTENCE_SHOWN)
    return f"{place}: {message}" if place else message


def _nothing_from_elsewhere(address: str) -> Any:
    raise ValueError(f"the schema refers to {address}, which is not fetched")


router = page_router()
_FIELDS: Final = 10


class Draft(BaseModel):
    """A replay as entered in the form so far."""

    mode: Mode = Mode.FROM_STEP
    from_step: Name | None = None
    input: str | None = None

    @property
    def first_step(self) -> str | None:
        """The step that it begins with, which an edit is for; none: the dead one."""
        return self.from_step if self.mode is Mode.FROM_STEP else None


@router.post("/dead-letters/{letter_id}/plan")
async def plan(request: Request, app_state: TheAppState, caller: Operator, tenant: Scope, letter_id: str) -> Response:
    """Show which steps are reused and which run again, and whether an edited input fits."""
    draft = _draft(await request.body())
    record = await find_letter(await app_state.pool(), tenant, letter_id)
    check = (
        await _check(app_state, record, draft) if draft.input is not None and caller.may(Right.PAYLOADS) else Check()
    )
    outline, problem = await _outline(app_state, record, draft)
    return show(
        request,
        caller,
        "replay_plan.html",
        letter=record,
        draft=draft,
        check=check,
        plan=outline,
        problem=problem,
        choices=_choices(record, outline) if outline and draft.mode is Mode.FROM_STEP else [],
    )


def _choices(record: LetterRecord, outline: Plan) -> list[str]:
    """Return the steps that a replay can begin with: the dead one and those before it."""
    names = [*outline.reused, *outline.run_again]
    return names[: names.index(record.module) + 1]


def _draft(body: bytes) -> Draft:
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=_FIELDS)
        return Draft.model_validate({name: values[-1] for name, values in fields.items() if values[-1]})
    except ValidationError as error:
        raise InvalidInput(validation_sentence(error)) from None
    except ValueError:
        raise InvalidInput("the form has more fields than it should: reload the page") from None


async def _check(app_state: AppState, record: LetterRecord, draft: Draft) -> Check:
    is_known = not is_omitted(record)
    shown = record.payload if is_known and isinstance(record.payload, dict) else {}
    earlier = draft.first_step if draft.first_step != record.step else None
    schema = await _schema(app_state, record.module) if is_known and not earlier else None
    # In a thread: other requests must not wait for a large input.
    check = await asyncio.to_thread(check_input, shown, draft.input or "", schema)
    return await _checked_by_run(app_state, record, earlier, check) if earlier and check.patch else check


async def _checked_by_run(app_state: AppState, record: LetterRecord, step: str, check: Check) -> Check:
    """Hold an edit against the input of an earlier step, which the page does not show: the run knows it."""
    options = ReplayOptions(from_step=step, input_patch=check.patch)
    try:
        found = await (await app_state.redrive()).check_edit(record.letter, options)
    except RedriveError:
        # It is checked with the command.
        return check
    problems = [found.problem] if found.problem else []
    return replace(check, problems=problems, unknown=[str(each) for each in found.unknown], is_checked=True)


async def _schema(app_state: AppState, module: str) -> dict[str, Any] | None:
    """Return the module's input schema. If no worker answers, the edit is checked with the command."""
    try:
        catalog = await app_state.catalog()
    except RedriveError:
        return None
    return next((known.input_schema for known in catalog.modules if known.name == module), None)


async def _outline(app_state: AppState, record: LetterRecord, draft: Draft) -> tuple[Plan | None, str | None]:
    try:
        letters = (await app_state.redrive()).dead_letters
        return await letters.plan(record.letter, mode=draft.mode, from_step=draft.first_step), None
    except RedriveError as error:
        return None, str(error)
