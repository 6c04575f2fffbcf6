"""What a replay would do, for the form on a dead letter's page: asked while it is filled in."""

import asyncio
from typing import Any, Final
from urllib.parse import parse_qs

from fastapi import Request, Response
from pydantic import BaseModel, ValidationError

from console.desk import Desk, TheDesk
from console.security import Operator, Scope
from console.web.checks import Check, check_input
from console.web.letters import find_letter, is_omitted
from console.web.render import show
from console.web.routes import page_router
from redrive.access import Right
from redrive.contracts import Name
from redrive.dead_letters import Mode
from redrive.documents import validation_sentence
from redrive.errors import InvalidInput, RedriveError
from redrive.operators import Plan
from store.records import LetterRecord

router = page_router()
_FIELDS: Final = 10


class Draft(BaseModel):
    """A replay as far as its form is filled in."""

    mode: Mode = Mode.FROM_STEP
    from_step: Name | None = None
    input: str | None = None


@router.post("/dead-letters/{letter_id}/plan")
async def plan(request: Request, desk: TheDesk, caller: Operator, tenant: Scope, letter_id: str) -> Response:
    """Show which steps are reused and which run again, and whether an edited input fits."""
    draft = _draft(await request.body())
    record = await find_letter(desk, tenant, letter_id)
    check = await _check(desk, record, draft) if draft.input is not None and caller.may(Right.PAYLOADS) else Check()
    outline, problem = await _outline(desk, record, draft)
    return show(
        request,
        caller,
        "plan.html",
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
    return names[: names.index(record.step) + 1]


def _draft(body: bytes) -> Draft:
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=_FIELDS)
        return Draft.model_validate({name: values[-1] for name, values in fields.items() if values[-1]})
    except ValidationError as error:
        raise InvalidInput(validation_sentence(error)) from None
    except ValueError:
        raise InvalidInput("the form has more fields than it should: reload the page") from None


async def _check(desk: Desk, record: LetterRecord, draft: Draft) -> Check:
    is_known = not is_omitted(record)
    shown = record.payload if is_known and isinstance(record.payload, dict) else {}
    schema = await _schema(desk, record.module) if is_known else None
    # In a thread: other requests must not wait for a large input.
    return await asyncio.to_thread(check_input, shown, draft.input or "", schema)


async def _schema(desk: Desk, module: str) -> dict[str, Any] | None:
    """Return the module's input schema. Where no worker answers, the edit is checked when it is ordered."""
    try:
        catalog = await desk.catalog()
    except RedriveError:
        return None
    return next((known.input_schema for known in catalog.modules if known.name == module), None)


async def _outline(desk: Desk, record: LetterRecord, draft: Draft) -> tuple[Plan | None, str | None]:
    first = draft.from_step if draft.mode is Mode.FROM_STEP else None
    try:
        letters = (await desk.redrive()).dead_letters
        return await letters.plan(record.letter, mode=draft.mode, from_step=first), None
    except RedriveError as error:
        return None, str(error)
