"""Extreme values in addresses: every list and every page answers with a 4xx or with what there is, never with a 5xx."""

import base64
import itertools
import json
import struct
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from redrive import Redrive
from redrive.bulk import BulkCommand, BulkPlan, BulkStart
from redrive.console.api.runs import RunFilter, runs_page
from redrive.console.app_state import AppState
from redrive.contracts import RunStatus
from redrive.dead_letters import Verb
from redrive.errors import InvalidInput
from redrive.postgres.paging import ListCursor, Place, mark_of, pack, write_cursor
from redrive.postgres.tenancy import Pool
from redrive.store.bulk.operations import open_bulk
from tests.conftest import eventually
from tests.hostile.documents import THINNED
from tests.integration.console.conftest import MakeToken, client_of
from tests.integration.dead_letters.lab import Case

MOMENTS = ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]
NUMBERS = ["2147483648", "-1", "9" * 30, "1e400", "NaN", "0x10"]
TEXTS = ["http://[x", "\0", "é" * 300, "x" * 5000]
# All that any address of ours may hold, and what some may not.
NAMES = {
    "since": MOMENTS,
    "until": MOMENTS,
    "after": NUMBERS,
    "limit": NUMBERS,
    "cursor": [*TEXTS, *NUMBERS],
    "next": TEXTS,
    "text": TEXTS,
    "status": TEXTS,
    "pipeline": TEXTS,
    "category": TEXTS,
    "fingerprint": TEXTS,
    "tenant": TEXTS,
    "letter": TEXTS,
    "verb": TEXTS,
    "key": TEXTS,
    "dead_letter": TEXTS,
    "view": TEXTS,
    "code": TEXTS,
    "state": TEXTS,
}
# The suite sends one request in seven, which meets all values; `make hostile` sends all.
EVERY = 1 if THINNED == 1 else 7
# Its answer has no end.
ENDLESS = "/api/v1/events"


def addresses(app: FastAPI) -> list[str]:
    """Return all addresses that are read, of the API and of the pages."""
    found = {context.path for context in iter_route_contexts(app.routes) if "GET" in (context.methods or ())}
    return sorted(path for path in found if path is not None and path != ENDLESS)


@pytest.fixture
async def bulk_id(pool: Pool, tenant: str) -> str:
    """A bulk operation of the test's tenant."""
    command = BulkCommand(tenant=tenant, verb=Verb.DISCARD)
    start = BulkStart(request_id=tenant, command=command, plan_hash="plan", requested_by="ada", reason="why")
    plan = BulkPlan(hash="plan", command=command, count=0, groups=[])
    await open_bulk(pool, start, lambda _members: plan, approvals=False)
    return start.bulk_id


@pytest.mark.parametrize("name", NAMES)
async def test_no_address_meets_an_error_of_ours(
    app: FastAPI, lab: Redrive, make_token: MakeToken, bulk_id: str, name: str
) -> None:
    """Addresses that can be read, with each parameter that any of them has, at its extremes."""
    paths = addresses(app)
    assert len(paths) > 50
    failed: dict[str, int] = {}
    async with client_of(app, await make_token()) as client:
        for path, value in list(itertools.product(paths, NAMES[name]))[::EVERY]:
            address = path.replace("{bulk_id}", bulk_id).replace("{", "").replace("}", "")
            page = {"Accept": "application/json" if path.startswith("/api") else "text/html"}
            answer = await client.get(address, params={name: value}, headers=page)
            if answer.status_code >= 500:
                failed[f"{address}?{name}={value[:40]}"] = answer.status_code
    assert failed == {}


@pytest.mark.parametrize("moment", MOMENTS[:2])
async def test_a_plan_with_an_extreme_moment_is_refused(admin: httpx.AsyncClient, moment: str) -> None:
    """422 with the field, before any worker is asked."""
    answer = await admin.post("/api/v1/bulk/plan", json={"verb": "replay", "selection": {"since": moment}})
    assert answer.status_code == 422
    assert answer.json()["places"][0]["place"] == "body.selection.since"


async def test_a_cursor_with_an_extreme_moment_is_refused(admin: httpx.AsyncClient, tenant: str) -> None:
    """400 for a cursor that somebody has changed, in every list that has them."""
    good = write_cursor(Place(datetime.now(UTC), "x"), RunFilter(tenant=tenant, status=None, pipeline=None))
    data = base64.urlsafe_b64decode(good + "==")
    for at in (2**63 - 1, -(2**63)):
        # After six bytes of a checksum.
        bad = base64.urlsafe_b64encode(data[:6] + struct.pack(">q", at) + data[14:]).decode()
        for path in ("workflow-dlq", "audit", "stored-events", "dead-events", "dead-messages", "retrying"):
            answer = await admin.get(f"/api/v1/{path}", params={"cursor": bad})
            assert answer.status_code in {400, 404}, (path, answer.text)


def changed(cursor: str, **changes: Any) -> str:
    """Return a cursor with some of its fields changed."""
    fields = json.loads(base64.urlsafe_b64decode(cursor + "=="))
    return base64.urlsafe_b64encode(json.dumps(fields | changes).encode()).decode().rstrip("=")


async def test_a_cursor_of_runs_that_was_changed_is_refused_at_once(
    app: FastAPI, admin: httpx.AsyncClient, case: Case, tenant: str
) -> None:
    """Temporal is never asked about a token that is not its own: it would be busy with it for ten seconds."""
    for _ in range(2):
        await case.start()
        await case.until(RunStatus.SUCCESS)

    async def both_are_listed() -> bool:
        # An open run stands elsewhere in the list than when it has ended.
        rows = (await admin.get("/api/v1/runs")).json()["runs"]
        return [row["status"] for row in rows] == ["SUCCESS", "SUCCESS"]

    await eventually(both_are_listed)
    page = (await admin.get("/api/v1/runs", params={"limit": 1})).json()
    cursor = page["cursor"]
    following = await admin.get("/api/v1/runs", params={"limit": 1, "cursor": cursor})
    assert {row["run_id"] for row in following.json()["runs"]} != {row["run_id"] for row in page["runs"]}
    signed = json.loads(base64.urlsafe_b64decode(cursor + "=="))["token"]
    mark, _, token = signed.partition(".")
    for changes in (
        {"token": f"{mark}.{token[:-8]}AAAAAAA="},
        {"token": f".{token}"},
        {"token": token},
        {"token": f"{mark}."},
        {"token": "é"},
        {"list": "000000000000"},
    ):
        answer = await admin.get("/api/v1/runs", params={"limit": 1, "cursor": changed(cursor, **changes)})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_input")
    async with client_of(app) as nobody:
        assert (await nobody.get("/api/v1/runs", params={"cursor": cursor})).status_code == 401


async def test_a_token_that_temporal_no_longer_takes_is_refused(app: FastAPI, tenant: str) -> None:
    """After another version of Temporal, or of its store, an old cursor is one to start again without."""
    app_state: AppState = app.state.app_state
    chosen = RunFilter(tenant=tenant, status=None, pipeline=None)
    seal = await app_state.seal()
    signed = seal.sign(f"runs {mark_of(chosen)}", base64.b64encode(b"not a token of this server").decode())
    cursor = pack(ListCursor(list=mark_of(chosen)))
    cursor = changed(cursor, token=signed)
    with pytest.raises(InvalidInput, match="start again without one"):
        await runs_page(await app_state.temporal(), seal, chosen, 10, cursor)
