"""The API keeps to its own description: schemathesis sends what it allows, and what it does not, as every role."""

import asyncio
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from redrive.access import Role
from tests.integration.console.conftest import MakeToken

Operation = APIOperation[Any, Any, Any, Any]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
# Its answer has no end: see test_events.py.
ENDLESS = {"/api/v1/events"}
EXAMPLES = {"nobody": 1, "viewer": 2, "staff": 1, "admin": 4, "owner": 2}


def _operations(app: FastAPI) -> list[Operation]:
    schema = schemathesis.openapi.from_dict(app.openapi())
    found = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    return [operation for operation in found if operation.path not in ENDLESS]


def _try(operation: Operation, mode: GenerationMode, examples: int, live: str, token: str) -> None:
    with requests.Session() as session:

        @hypothesis.settings(
            max_examples=examples,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[hypothesis.Phase.generate],
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def attempt(case: Case[Any]) -> None:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            response = case.call(base_url=live, headers=headers, session=session)
            case.validate_response(response, checks=CHECKS)

        attempt()


@pytest.mark.parametrize("who", EXAMPLES)
async def test_no_request_meets_an_error_of_ours(app: FastAPI, live: str, make_token: MakeToken, who: str) -> None:
    """Whatever is sent, by whomever: an answer that the schema describes, and never a 5xx."""
    token = await make_token(Role(who)) if who != "nobody" else ""
    for operation in _operations(app):
        for mode in GenerationMode:
            await asyncio.to_thread(_try, operation, mode, EXAMPLES[who], live, token)
