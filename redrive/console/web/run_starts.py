"""Forms that start runs: of a pipeline, by a form made from its schema, or like another run with its payload edited."""

import asyncio
from typing import Any, Final
from urllib.parse import parse_qs

from fastapi import Request, Response
from pydantic import BaseModel

from redrive.access import Right
from redrive.console.api.run_contents import read_document
from redrive.console.app_state import TheAppState
from redrive.console.authentication import Scope, Starter
from redrive.console.web.edits import Check, check_input, schema_problems
from redrive.console.web.payload_forms import form_fields, payload_schema, read_fields
from redrive.console.web.render import show
from redrive.console.web.routes import page_router, read_query
from redrive.contracts import DEFAULT_TENANT, Name
from redrive.documents import parse_payload
from redrive.errors import InvalidInput, RedriveError

router = page_router()
_FIELDS: Final = 1000


class NewRunQuery(BaseModel):
    """The query of the form that starts a run."""

    pipeline: Name | None = None


@router.get("/runs/new")
async def new(request: Request, app_state: TheAppState, caller: Starter, tenant: Scope) -> Response:
    """Show the form that starts a run: first the choice of a pipeline, then its fields."""
    asked, catalog = read_query(NewRunQuery, request), await app_state.catalog()
    fields = form_fields(payload_schema(catalog, asked.pipeline)) if asked.pipeline else []
    return show(
        request,
        caller,
        "run_new.html",
        pipelines=[each.name for each in catalog.pipelines],
        pipeline=asked.pipeline,
        fields=fields,
        tenant=tenant or DEFAULT_TENANT,
    )


@router.post("/runs/plan")
async def plan(request: Request, app_state: TheAppState, caller: Starter) -> Response:
    """Show whether what was entered fits the pipeline, and the payload that it makes."""
    asked, given = read_query(NewRunQuery, request), _form(await request.body())
    schema = payload_schema(await app_state.catalog(), asked.pipeline or "")
    try:
        payload, unreadable = read_fields(schema, given)
        if "document" in given:
            payload, unreadable = parse_payload(given["document"]), []
    except InvalidInput as error:
        payload, unreadable = {}, [str(error).removeprefix("payload: ")]
    misfits = [] if unreadable else await asyncio.to_thread(schema_problems, payload, schema)
    missing = [name for name in schema["required"] if name not in payload]
    values: dict[str, Any] = {"payload": payload, "unreadable": unreadable, "misfits": misfits, "missing": missing}
    return show(request, caller, "run_plan.html", **values)


@router.get("/runs/{run_id}/again")
async def again(request: Request, app_state: TheAppState, caller: Starter, tenant: Scope, run_id: str) -> Response:
    """Show the form that starts a run like this one, with its payload to edit, for those who may see payloads."""
    run = await read_document(app_state, tenant, run_id)
    redactor = await app_state.redactor_of_runs()
    payload = await redactor.value_aside(run.payload) if caller.may(Right.PAYLOADS) else None
    return show(request, caller, "run_again.html", run=run, run_id=run_id, payload=payload)


@router.post("/runs/{run_id}/again/plan")
async def again_plan(request: Request, app_state: TheAppState, caller: Starter, tenant: Scope, run_id: str) -> Response:
    """Show what an edited payload changes, and whether it fits the pipeline."""
    given = _form(await request.body())
    run = await read_document(app_state, tenant, run_id)
    check = Check()
    if "document" in given and caller.may(Right.PAYLOADS):
        shown = await (await app_state.redactor_of_runs()).value_aside(run.payload)
        try:
            schema = payload_schema(await app_state.catalog(), run.pipeline)
        except RedriveError:
            schema = None
        check = await asyncio.to_thread(check_input, shown, given["document"], schema)
    return show(request, caller, "payload_plan.html", check=check, is_edited="document" in given)


def _form(body: bytes) -> dict[str, str]:
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=_FIELDS)
    except ValueError:
        raise InvalidInput("the form has more fields than it should: reload the page") from None
    return {name: values[-1] for name, values in fields.items()}
