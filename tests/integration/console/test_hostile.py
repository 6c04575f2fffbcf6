"""A hostile tenant: what belongs to others is neither seen nor touched, over HTTP or by SQL as the app's role."""

import uuid
from datetime import timedelta

import asyncpg
import httpx
import pytest
from fastapi import FastAPI

from redrive.access import Role
from redrive.postgres.tenancy import Pool, reading, transaction
from redrive.store.access import list_tokens
from redrive.store.dead_letters.records import record_exhausted
from redrive.store.runs import put_retrying
from tests.integration.console.broker_rows import bury, give_up, store_event
from tests.integration.console.conftest import MakeToken, client_of
from tests.integration.dead_letters.lab import Case
from tests.integration.store.letters import exhausted, new_letter, new_tenant
from tests.integration.store.retrying import new_retrying

WHY = {"reason": "mischief"}
FAMILIES = {
    "workflow-dlq": "dead_letters",
    "workflow-dlq/groups": "groups",
    "runs": "runs",
    "retrying": "retrying",
    "dead-messages": "dead_messages",
    "dead-events": "dead_events",
    "stored-events": "events",
}


async def test_a_foreign_admin_finds_nothing(
    app: FastAPI, make_token: MakeToken, case: Case, pool: Pool, access: Pool
) -> None:
    """Lists are empty, and each verb on each of another tenant's things says that there is no such thing."""
    await case.park("second")
    letter = case.letter("second").workflow_id
    await put_retrying(pool, new_retrying(case.tenant, run_id=case.run_id), timedelta(minutes=1))
    await make_token(name="the victim's")
    token = (await list_tokens(access, case.tenant))[0]
    before = await case.record("second")
    left = await _left_by_brokers(pool, case.tenant)
    async with client_of(app, await make_token(tenant=new_tenant())) as foreign:
        for path, key in FAMILIES.items():
            assert (await foreign.get(f"/api/v1/{path}")).json()[key] == []
        assert case.run_id not in (await foreign.get("/retrying")).text + (await foreign.get("/")).text
        lines = (await foreign.get("/api/v1/audit")).json()["lines"]
        assert {line["action"] for line in lines} == {"token_created"}
        assert (await foreign.get("/api/v1/audit", params={"dead_letter": letter})).json()["lines"] == []
        assert token.id not in (await foreign.get("/api/v1/tokens")).text
        for path in (
            *(f"workflow-dlq/{letter}/{verb}" for verb in ("replay", "ignore", "discard", "restart")),
            *(f"runs/{case.run_id}/{verb}" for verb in ("cancel", "continue")),
            *(f"{thing}/{verb}" for thing, verbs in left.items() for verb in verbs),
        ):
            assert (await foreign.post(f"/api/v1/{path}", json=WHY)).status_code == 404
        answer = await foreign.post(f"/api/v1/workflow-dlq/{letter}/resolve", json=WHY | {"output": {}})
        assert answer.status_code == 404
        assert (await foreign.post(f"/api/v1/tokens/{token.id}/revoke")).status_code == 404
        unknown = await foreign.get("/api/v1/workflow-dlq/dead-letter-run-none-second")
        theirs = await foreign.get(f"/api/v1/workflow-dlq/{letter}")
        assert unknown.json()["code"] == theirs.json()["code"]
        for thing in left:
            assert (await foreign.get(f"/api/v1/{thing}")).status_code == 404
    assert await case.record("second") == before
    assert {row["status"] for row in await _left_statuses(pool, case.tenant)} == {"pending"}
    assert [row for row in await case.audit() if row["action"] == "refused"] == []


async def _left_by_brokers(pool: Pool, tenant: str) -> dict[str, tuple[str, ...]]:
    """Put a dead message, a dead event and an event there; return their addresses, each with its verbs."""
    verbs = ("replay", "ignore", "discard")
    return {
        f"dead-messages/{await give_up(pool, tenant)}": verbs,
        f"dead-events/{await bury(pool, tenant, b'{')}": verbs,
        f"stored-events/{(await store_event(pool, tenant)).id}": ("replay",),
    }


async def _left_statuses(pool: Pool, tenant: str) -> list[asyncpg.Record]:
    """Return what became of a tenant's dead messages and dead events."""
    async with reading(pool, tenant) as connection:
        return await connection.fetch("SELECT status FROM dead_messages UNION ALL SELECT status FROM dead_events")


LISTS = [*FAMILIES, "audit", "workflow-dlq/stats", "tokens", "approvals"]


@pytest.mark.parametrize("path", LISTS)
async def test_another_tenant_cannot_be_named(admin: httpx.AsyncClient, path: str) -> None:
    """A query that names another tenant is refused, and so is a body that names any."""
    answer = await admin.get(f"/api/v1/{path}", params={"tenant": "somebody-else"})
    assert (answer.status_code, answer.json()["code"]) == (403, "foreign_tenant")
    body = await admin.post("/api/v1/runs", json={"pipeline": "three", "tenant": "somebody-else"})
    assert (body.status_code, body.json()["places"][0]["place"]) == (422, "body.tenant")


async def test_an_owner_sees_all_tenants_or_one(owner: httpx.AsyncClient, pool: Pool, tenant: str) -> None:
    """Without a word an owner sees every tenant's letters; with `tenant` those of one."""
    other = new_tenant()
    for whose in (tenant, other):
        await record_exhausted(pool, exhausted(new_letter(whose), correlation_id=f"both-{tenant}"))
    everything = (await owner.get("/api/v1/workflow-dlq", params={"text": f"both-{tenant}"})).json()
    assert {row["tenant"] for row in everything["dead_letters"]} == {tenant, other}
    one = (await owner.get("/api/v1/workflow-dlq", params={"tenant": other})).json()
    assert {row["tenant"] for row in one["dead_letters"]} == {other}


async def test_rights_cannot_be_widened(app: FastAPI, make_token: MakeToken, admin: httpx.AsyncClient) -> None:
    """Whoever may only make tokens cannot make one that may do more; nobody makes an owner's over HTTP."""
    made = await admin.post("/api/v1/tokens", json={"name": "maker", "role": "admin", "rights": ["tokens"]})
    async with client_of(app, made.json()["secret"]) as maker:
        assert (await maker.get("/api/v1/workflow-dlq")).status_code == 403
        more = await maker.post("/api/v1/tokens", json={"name": "more", "role": "admin"})
        assert (more.status_code, more.json()["code"]) == (403, "forbidden")
    owner = await admin.post("/api/v1/tokens", json={"name": "all", "role": "owner"})
    assert owner.status_code == 400
    reader = await admin.post("/api/v1/tokens", json={"name": "x", "role": "viewer", "rights": ["command"]})
    assert reader.status_code == 400


ATTACKS = {
    "read the secrets of tokens": "SELECT hash FROM api_tokens",
    "read sessions": "SELECT * FROM sessions",
    "make an owner": (
        "INSERT INTO api_tokens (id, tenant, name, role, rights, hash, created_by, person, expires_at) "
        "VALUES ('tok_x', '*', 'x', 'owner', '{read}', '\\x00', 'x', 'x', now() + interval '1 day')"
    ),
    "make a token elsewhere": (
        "INSERT INTO api_tokens (id, tenant, name, role, rights, hash, created_by, person, expires_at) "
        "VALUES ('tok_x', 'elsewhere', 'x', 'admin', '{read}', '\\x00', 'x', 'x', now() + interval '1 day')"
    ),
    "raise a token": "UPDATE api_tokens SET role = 'owner', tenant = '*'",
    "make a member": (
        "INSERT INTO members (subject, tenant, role, rights, changed_by) VALUES ('x', '*', 'owner', '{}', 'x')"
    ),
    "open a door": "INSERT INTO sessions (hash, kind, token_id, expires_at) VALUES ('\\x00', 'session', 'x', now())",
    "approve elsewhere": (
        "INSERT INTO approvals (tenant, plan_hash, dead_letter, plan, reason, requested_by, requested_person) "
        "VALUES ('elsewhere', 'x', 'x', '{}', 'x', 'x', 'x')"
    ),
    "take a link without a session": "SELECT take_link('\\x00')",
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("role", ["pool", "access"])
async def test_neither_role_can(request: pytest.FixtureRequest, tenant: str, attack: str, role: str) -> None:
    """What SQL that was smuggled into a tenant's transaction tries, PostgreSQL refuses."""
    connections: Pool = request.getfixturevalue(role)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        async with transaction(connections, tenant) as connection:
            await connection.execute(ATTACKS[attack])


async def test_rows_of_others_are_not_there(access: Pool, tenant: str, make_token: MakeToken) -> None:
    """In a tenant's transaction other tenants' tokens are neither read nor revoked."""
    await make_token(Role.ADMIN, name=f"mine-{tenant}")
    async with reading(access, new_tenant()) as connection:
        assert await connection.fetchval("SELECT count(*) FROM api_tokens") == 0
    async with transaction(access, new_tenant()) as connection:
        done = await connection.execute("UPDATE api_tokens SET revoked_by = 'x', revoked_at = now()")
    assert done == "UPDATE 0"
    guess = uuid.uuid4().bytes
    assert await access.fetch("SELECT * FROM token_by_hash($1)", guess) == []
