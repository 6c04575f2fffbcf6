"""Every route, as everybody: who gets what. A new route without a line here fails the first test."""

import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, NamedTuple

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from redrive import Redrive
from redrive.access import Role
from redrive.bulk import BulkCommand, BulkPlan, BulkStart
from redrive.contracts import RunStatus
from redrive.dead_letters import Verb
from redrive.postgres.tenancy import Pool
from redrive.store.access import list_tokens, revoke_token
from redrive.store.approvals import ask_plan_approval
from tests.integration.console.broker_rows import bury, give_up, store_event
from tests.integration.console.conftest import MakeToken, client_of
from tests.integration.dead_letters.lab import Case
from tests.integration.store.letters import new_tenant

WHY = {"reason": "the table"}
STALE = WHY | {"command": {"verb": "discard"}, "plan_hash": "old"}
# Orders are sent with a version that no record has: who may give them gets 412, and nothing is done.
OLD = {"If-Match": '"0"'}


class Row(NamedTuple):
    """What one route answers: to nobody, and to the roles of the tenant that owns what the path names."""

    nobody: int
    viewer: int
    staff: int
    admin: int
    foreign: int
    owner: int
    body: dict[str, Any] | None = None
    headers: dict[str, str] | None = None
    query: str = ""


def _open(status: int, body: dict[str, Any] | None = None) -> Row:
    return Row(status, status, status, status, status, status, body)


READ = Row(401, 200, 200, 200, 200, 200)
READ_ONE = Row(401, 200, 200, 200, 404, 200)
COMMAND = Row(401, 403, 403, 412, 404, 412, WHY, OLD)
# Viewers and staff see payloads only if they were given that right.
PAYLOAD = Row(401, 403, 403, 200, 404, 200)

TABLE: dict[tuple[str, str], Row] = {
    ("GET", "/api/v1/runs"): READ,
    # A tenant's own admin may start there: the pipeline is what is refused.
    ("POST", "/api/v1/runs"): Row(401, 403, 403, 422, 422, 422, {"pipeline": "nothing-like-it"}),
    ("GET", "/api/v1/runs/{run_id}"): READ_ONE,
    # The patch makes the payload one that does not fit.
    ("POST", "/api/v1/runs/{run_id}/again"): Row(401, 403, 403, 400, 404, 400, WHY | {"payload_patch": {"case": None}}),
    ("POST", "/api/v1/runs/{run_id}/cancel"): Row(401, 403, 403, 409, 404, 409, WHY),
    ("POST", "/api/v1/runs/{run_id}/continue"): Row(401, 403, 403, 404, 404, 404, WHY),
    ("GET", "/api/v1/runs/{run_id}/steps/{step}"): PAYLOAD,
    ("GET", "/api/v1/schedules"): READ,
    # There is none of this name; an owner has to name the tenant.
    ("POST", "/api/v1/schedules"): Row(401, 403, 403, 400, 400, 422, WHY | {"name": "none", "pipeline": "three"}),
    ("GET", "/api/v1/schedules/{name}"): Row(401, 404, 404, 404, 404, 422),
    **{
        ("POST", f"/api/v1/schedules/{{name}}/{verb}"): Row(401, 403, 403, 404, 404, 422, WHY)
        for verb in ("pause", "resume", "trigger", "delete")
    },
    ("POST", "/api/v1/schedules/{name}/backfill"): Row(
        401, 403, 403, 404, 404, 422, WHY | {"since": "2026-01-01T00:00:00Z", "until": "2026-01-02T00:00:00Z"}
    ),
    ("GET", "/api/v1/retrying"): READ,
    ("GET", "/api/v1/retrying/activities"): READ,
    # There is none of this name.
    ("POST", "/api/v1/retrying/activities/{verb}"): Row(
        401, 403, 403, 404, 404, 404, WHY | {"workflow_id": "none", "execution": str(uuid.uuid4()), "activity_id": "1"}
    ),
    ("GET", "/api/v1/workflow-dlq"): READ,
    ("GET", "/api/v1/workflow-dlq/groups"): READ,
    ("GET", "/api/v1/workflow-dlq/stats"): READ,
    ("GET", "/api/v1/workflow-dlq/{letter_id}"): READ_ONE,
    ("POST", "/api/v1/workflow-dlq/{letter_id}/plan"): Row(401, 200, 200, 200, 404, 200, {}),
    ("POST", "/api/v1/workflow-dlq/{letter_id}/replay"): COMMAND,
    ("POST", "/api/v1/workflow-dlq/{letter_id}/resolve"): COMMAND._replace(body=WHY | {"output": {}}),
    ("POST", "/api/v1/workflow-dlq/{letter_id}/ignore"): COMMAND,
    ("POST", "/api/v1/workflow-dlq/{letter_id}/discard"): COMMAND,
    ("POST", "/api/v1/workflow-dlq/{letter_id}/restart"): COMMAND,
    ("POST", "/api/v1/workflow-dlq/{letter_id}/reset"): COMMAND,
    ("GET", "/api/v1/dead-messages"): READ,
    ("GET", "/api/v1/dead-messages/{message_id}"): READ_ONE,
    ("POST", "/api/v1/dead-messages/{message_id}/replay"): COMMAND,
    ("POST", "/api/v1/dead-messages/{message_id}/ignore"): COMMAND,
    ("POST", "/api/v1/dead-messages/{message_id}/discard"): COMMAND,
    ("GET", "/api/v1/dead-events"): READ,
    ("GET", "/api/v1/dead-events/{dead_id}"): READ_ONE,
    ("POST", "/api/v1/dead-events/{dead_id}/replay"): COMMAND,
    ("POST", "/api/v1/dead-events/{dead_id}/ignore"): COMMAND,
    ("POST", "/api/v1/dead-events/{dead_id}/discard"): COMMAND,
    ("GET", "/api/v1/stored-events"): READ,
    ("GET", "/api/v1/stored-events/{event_id}"): READ_ONE,
    # An event has no version: a projector that there is not is what is refused.
    ("POST", "/api/v1/stored-events/{event_id}/replay"): Row(
        401, 403, 403, 400, 404, 400, WHY | {"projectors": ["nobody"]}
    ),
    ("GET", "/api/v1/outbox"): READ,
    # No outbox is installed here: there is no row of any name.
    ("GET", "/api/v1/outbox/{event_id}"): Row(401, 404, 404, 404, 404, 404),
    ("POST", "/api/v1/outbox/{event_id}/replay"): Row(401, 403, 403, 404, 404, 404, WHY),
    ("GET", "/api/v1/bulk"): READ,
    # An owner has to name the tenant of a bulk operation; a tenant without dead letters has nothing to plan.
    ("POST", "/api/v1/bulk/plan"): Row(401, 200, 200, 200, 400, 422, {"verb": "discard"}),
    ("POST", "/api/v1/bulk"): Row(401, 403, 403, 409, 400, 422, STALE),
    ("GET", "/api/v1/bulk/{bulk_id}"): READ_ONE,
    ("GET", "/api/v1/bulk/{bulk_id}/items"): READ_ONE,
    # It has ended: there is nothing left to pause.
    ("POST", "/api/v1/bulk/{bulk_id}/pause"): Row(401, 403, 403, 404, 404, 404, WHY),
    ("POST", "/api/v1/bulk/{bulk_id}/resume"): Row(401, 403, 403, 404, 404, 404, WHY),
    ("POST", "/api/v1/bulk/{bulk_id}/stop"): Row(401, 403, 403, 404, 404, 404, WHY),
    ("GET", "/api/v1/approvals"): READ,
    # The admin asked for it: an owner, who is somebody else, approves it.
    ("GET", "/api/v1/approvals/{plan_hash}"): READ_ONE,
    ("POST", "/api/v1/approvals/{plan_hash}"): Row(401, 403, 403, 409, 404, 200, WHY),
    # It is of a bulk operation, which is started elsewhere.
    ("POST", "/api/v1/approvals/{plan_hash}/start"): Row(401, 403, 403, 409, 404, 409, {}),
    ("GET", "/api/v1/modules"): READ,
    ("GET", "/api/v1/services"): READ,
    ("GET", "/api/v1/audit"): READ,
    ("GET", "/api/v1/tokens"): Row(401, 403, 403, 200, 200, 200),
    # An owner's token is made on the command line, by nobody here.
    ("POST", "/api/v1/tokens"): Row(401, 403, 403, 400, 400, 400, {"name": "mine", "role": "owner"}),
    ("POST", "/api/v1/tokens/{token_id}/revoke"): Row(401, 403, 403, 404, 404, 404),
    ("GET", "/api/v1/me"): READ,
    # The stream would go on: a query that does not fit tells that the caller was let in.
    ("GET", "/api/v1/events"): Row(401, 422, 422, 422, 422, 422, query="?tenant=No!"),
    ("GET", "/api/v1/healthz"): _open(200),
    ("GET", "/api/v1/readyz"): _open(200),
    ("GET", "/api/v1/metrics"): READ,
    ("GET", "/api/v1/openapi.json"): _open(200),
    ("GET", "/healthz"): _open(200),
    ("GET", "/readyz"): _open(200),
    ("GET", "/metrics"): READ,
    ("GET", "/"): READ,
    ("GET", "/overview/runs"): READ,
    ("GET", "/overview/health"): READ,
    ("GET", "/overview/services"): READ,
    ("GET", "/dead-letters"): READ,
    ("GET", "/app/admin/dlq"): READ,
    ("GET", "/dead-letters/{letter_id}"): READ_ONE,
    ("GET", "/app/admin/dlq/{letter_id}"): READ_ONE,
    ("POST", "/dead-letters/{letter_id}/plan"): Row(401, 403, 403, 200, 404, 200),
    ("GET", "/events"): READ,
    ("GET", "/events/dead/{dead_id}"): READ_ONE,
    ("POST", "/events/dead/{dead_id}/plan"): Row(401, 403, 403, 200, 404, 200),
    ("GET", "/events/{event_id}"): READ_ONE,
    ("GET", "/events/outbox"): READ,
    ("GET", "/events/outbox/{event_id}"): Row(401, 404, 404, 404, 404, 404),
    ("GET", "/messages"): READ,
    ("GET", "/messages/{message_id}"): READ_ONE,
    ("GET", "/bulk"): READ,
    ("GET", "/bulk/new"): Row(401, 403, 403, 200, 200, 422),
    # The form says nothing, not even the verb.
    ("POST", "/bulk/plan"): Row(401, 403, 403, 400, 400, 422),
    ("GET", "/bulk/{bulk_id}"): READ_ONE,
    ("GET", "/bulk/approvals/{plan_hash}"): READ_ONE,
    ("GET", "/runs"): READ,
    ("GET", "/runs/{run_id}"): READ_ONE,
    ("GET", "/runs/{run_id}/steps/{step}"): PAYLOAD,
    ("GET", "/runs/new"): Row(401, 403, 403, 200, 200, 200),
    # It names no pipeline.
    ("POST", "/runs/plan"): Row(401, 403, 403, 422, 422, 422),
    ("GET", "/runs/{run_id}/again"): PAYLOAD,
    ("POST", "/runs/{run_id}/again/plan"): PAYLOAD,
    ("GET", "/retrying"): READ,
    ("GET", "/retrying/activities"): READ,
    ("GET", "/schedules"): READ,
    ("GET", "/schedules/{name}"): Row(401, 404, 404, 404, 404, 422),
    ("GET", "/modules"): READ,
    ("GET", "/audit"): READ,
    ("GET", "/tokens"): Row(401, 403, 403, 200, 200, 200),
    ("GET", "/sign-in"): _open(200),
    ("POST", "/sign-in"): _open(401),
    ("GET", "/sign-in/link/{secret}"): _open(401),
    ("GET", "/sign-in/oidc"): _open(404),
    ("GET", "/sign-in/callback"): _open(401),
    ("POST", "/sign-out"): _open(303),
    ("GET", "/tenants"): Row(401, 403, 403, 403, 403, 200),
    # A form of a page: nobody here has a session.
    ("POST", "/tenant"): _open(403),
}


@pytest.fixture(scope="package")
async def people(app: FastAPI, lab: Redrive) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
    """Clients by who they are; filled by the first test that makes them."""
    clients: dict[str, httpx.AsyncClient] = {}
    yield clients
    for client in clients.values():
        await client.aclose()


class Scene(NamedTuple):
    """Who asks, and about what."""

    people: dict[str, httpx.AsyncClient]
    names: dict[str, str]


@pytest.fixture
async def scene(
    app: FastAPI, people: dict[str, httpx.AsyncClient], pool: Pool, case: Case, make_token: MakeToken
) -> Scene:
    """Everybody there is, and a tenant with a dead letter, an ended run, a revoked token, and what brokers left."""
    await case.park("second")
    parked = case.letter("second").workflow_id
    case.mend()
    case.service.broken.clear()
    await case.start()
    await case.until(RunStatus.SUCCESS)
    secrets = {role.value: await make_token(role, person=_person(case, role)) for role in Role}
    secrets["foreign"] = await make_token(tenant=new_tenant())
    secrets["revoked"] = await make_token(name="to be revoked")
    access: Pool = await app.state.app_state.access()
    revoked = next(row for row in await list_tokens(access, case.tenant) if row.name == "to be revoked")
    await revoke_token(access, case.tenant, revoked.id, "the tests")
    secrets["expired"] = await make_token(lasts=timedelta(microseconds=1))
    for who, secret in secrets.items():
        people[who] = client_of(app, secret)
    people["nobody"] = client_of(app)
    people["made up"] = client_of(app, "rdt_made-up")
    bulk_id = await _ended_bulk(people["admin"], case)
    names = {
        "run_id": case.run_id,
        "step": "first",
        "name": "no-such",
        "verb": "pause",
        "letter_id": parked,
        "token_id": revoked.id,
        "bulk_id": bulk_id,
    }
    names |= {
        "step": "first",
        "name": "no-such",
        "message_id": await give_up(pool, case.tenant),
        "dead_id": await bury(pool, case.tenant, b"{"),
        "event_id": (await store_event(pool, case.tenant)).id,
    }
    return Scene(people, names | {"plan_hash": await _waiting_plan(pool, case), "secret": "made-up"})


async def _waiting_plan(pool: Pool, case: Case) -> str:
    """Have a plan of the admin's wait, as a worker with approvals on does, and return its hash."""
    command = BulkCommand(tenant=case.tenant, verb=Verb.DISCARD)
    plan = BulkPlan(hash=case.name, command=command, count=1, groups=[])
    who = WHY | {"requested_by": "the admin", "person": _person(case, Role.ADMIN)}
    start = BulkStart(request_id=case.name, command=command, plan_hash=plan.hash, **who)
    await ask_plan_approval(pool, start, plan.model_dump(mode="json"))
    return plan.hash


def _person(case: Case, role: Role) -> str:
    return f"member:{role.value}@{case.tenant}"


async def _ended_bulk(admin: httpx.AsyncClient, case: Case) -> str:
    """Discard a dead letter by a bulk operation of its own, and return that when it has ended."""
    ended = case.run_id
    await case.park("second")
    wish = {"verb": "discard", "selection": {"letters": [case.letter("second").workflow_id]}}
    planned = (await admin.post("/api/v1/bulk/plan", json=wish)).json()
    command = WHY | {"command": planned["command"], "plan_hash": planned["hash"]}
    bulk_id: str = (await admin.post("/api/v1/bulk", json=command)).json()["bulk_id"]
    await case.temporal.get_workflow_handle(bulk_id).result()
    case.run_id = ended
    return bulk_id


def test_every_route_has_a_line(app: FastAPI) -> None:
    """A route that the table does not know, or one that it knows and that is gone, fails."""
    routes = {
        (method, context.path)
        for context in iter_route_contexts(app.routes)
        for method in context.methods or ()
        if method not in {"HEAD", "OPTIONS"}
    }
    assert routes == set(TABLE)


async def test_everybody_gets_exactly_what_they_may(scene: Scene) -> None:
    """Nobody, a viewer, staff, an admin, an admin of another tenant, an owner, and tokens that are no good any more."""
    wrong = []
    for (method, path), row in TABLE.items():
        strangers = dict.fromkeys(("nobody", "made up", "revoked", "expired"), row.nobody)
        expected = strangers | {who: getattr(row, who) for who in ("viewer", "staff", "admin", "foreign", "owner")}
        for who, status in expected.items():
            address = path.format(**scene.names) + row.query
            answer = await scene.people[who].request(method, address, json=row.body, headers=row.headers)
            if answer.status_code != status:
                wrong.append((who, method, path, answer.status_code, status, answer.text[:200]))
    assert wrong == []
