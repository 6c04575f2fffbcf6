"""The API keeps to its own description: schemathesis sends what it allows, and what it does not, as every role."""

import asyncio
import zlib
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import hypothesis
import pytest
import requests
import schemathesis
from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from hypothesis import HealthCheck
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup, ServerError
from schemathesis.core.result import Ok
from schemathesis.openapi.checks import JsonSchemaError, UndefinedStatusCode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from redrive.access import Role
from tests.hostile.documents import THINNED
from tests.integration.console.conftest import MakeToken, served

Operation = APIOperation[Any, Any, Any, Any]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
# Its answer has no end: see test_events.py.
ENDLESS = {"/api/v1/events"}
# What the requests of each must have met at least: who is let in, and what is refused.
MET = {
    "nobody": {200, 401},
    "viewer": {200, 403, 404, 422},
    "staff": {200, 403, 404},
    "admin": {200, 404, 422},
    "owner": {200, 404, 422},
}
# Of what is allowed and of what is not, for each operation; `make hostile` sends more.
EXAMPLES = 4 if THINNED == 1 else 2


class Tried(NamedTuple):
    """One request that was sent, and the status of its answer."""

    who: str
    method: str
    path: str
    mode: GenerationMode
    status: int


def _operations(app: FastAPI) -> list[Operation]:
    results = list(schemathesis.openapi.from_dict(app.openapi()).get_all_operations())
    found = [result.ok() for result in results if isinstance(result, Ok)]
    assert len(found) == len(results), "part of the schema cannot be read"
    return [operation for operation in found if operation.path not in ENDLESS]


def _described(app: FastAPI) -> set[tuple[str, str]]:
    """Return every method and path of the schema, as it is written there."""
    paths = app.openapi()["paths"].items()
    return {(method.upper(), path) for path, item in paths for method in item if path not in ENDLESS}


def _callers(tokens: Mapping[str, str], operation: Operation, mode: GenerationMode) -> Mapping[str, str]:
    """Return who sends a request: everybody; of what is not allowed, who may most, and the others by turns."""
    if THINNED == 1 or mode is GenerationMode.POSITIVE or len(tokens) == 1:
        return tokens
    turn = sorted(tokens)[zlib.crc32(operation.label.encode()) % len(tokens)]
    return {who: tokens[who] for who in {turn, Role.OWNER.value}}


def _try(operation: Operation, mode: GenerationMode, live: str, tokens: Mapping[str, str]) -> list[Tried]:
    """Send requests of one kind to one operation; check the answers; return what was sent."""
    tried: list[Tried] = []
    with requests.Session() as session:

        @hypothesis.settings(
            max_examples=EXAMPLES,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[hypothesis.Phase.generate],
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def attempt(case: Case[Any]) -> None:
            for who, token in _callers(tokens, operation, mode).items():
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                response = case.call(base_url=live, headers=headers, session=session)
                case.validate_response(response, checks=CHECKS)
                tried.append(Tried(who, operation.method.upper(), operation.path, mode, response.status_code))

        attempt()
    return tried


async def test_no_request_meets_an_error_of_ours(app: FastAPI, live: str, make_token: MakeToken) -> None:
    """Whatever is sent, by whomever: an answer that the schema describes, and never a 5xx."""
    tokens = {who: await make_token(Role(who)) if who != "nobody" else "" for who in MET}
    tried: list[Tried] = []
    for operation in _operations(app):
        for mode in GenerationMode:
            tried += await asyncio.to_thread(_try, operation, mode, live, tokens)
    assert {(each.method, each.path) for each in tried} == _described(app)
    assert {each.mode for each in tried} == set(GenerationMode)
    assert [each for each in tried if each.status >= 500] == []
    for who, wanted in MET.items():
        met = {each.status for each in tried if each.who == who}
        assert met >= wanted, f"the requests of {who} never got to the answers {wanted - met}"


async def test_an_answer_that_is_not_described_is_found() -> None:
    """The test above can fail: a 500, a status and a body that the schema does not know are each found."""
    app = FastAPI()

    @app.get("/{what}", response_model=dict[str, int])
    async def answer(what: Literal["error", "status", "body"]) -> Response:
        status = {"error": 500, "status": 418, "body": 200}[what]
        return JSONResponse({"n": "many"}, status_code=status)

    schema = app.openapi()
    parameter = schema["paths"]["/{what}"]["get"]["parameters"][0]["schema"]
    async with served(app) as address:
        for what, failure in (("error", ServerError), ("status", UndefinedStatusCode), ("body", JsonSchemaError)):
            parameter["enum"] = [what]
            (operation,) = _operations(app)
            with pytest.raises(FailureGroup) as found:
                await asyncio.to_thread(_try, operation, GenerationMode.POSITIVE, address, {"nobody": ""})
            assert failure in {type(each) for each in found.value.exceptions}
