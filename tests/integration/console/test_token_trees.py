"""Tokens that were made with a token: they are revoked with it, however deep, and the audit log says so."""

import asyncio
from datetime import timedelta

import httpx
import pytest
from fastapi import FastAPI

from redrive.access import Role
from redrive.console.api import access as access_routes
from redrive.errors import InvalidInput
from redrive.postgres.tenancy import Pool
from redrive.store.access import (
    NewToken,
    TokenRequest,
    create_token,
    list_tokens,
    made_with,
    revoke_token,
    token_principal,
)
from redrive.store.audit import list_audit
from tests.integration.console.conftest import MakeToken, client_of

TOKENS = "/api/v1/tokens"


async def make(client: httpx.AsyncClient, name: str) -> tuple[str, str]:
    """Make a token through the API, and return its id and secret."""
    made = (await client.post(TOKENS, json={"name": name, "role": "admin"})).json()
    return made["id"], made["secret"]


async def test_a_list_that_is_cut_says_so(monkeypatch: pytest.MonkeyPatch, admin: httpx.AsyncClient) -> None:
    """In the API and on the page; a list that has them all says nothing."""
    for name in ("first", "second"):
        await make(admin, name)
    everything, page = await admin.get(TOKENS), await admin.get("/tokens")
    assert (len(everything.json()["tokens"]), everything.json()["more"]) == (3, False)
    assert "There are older ones" not in page.text
    monkeypatch.setattr(access_routes, "MOST_TOKENS", 2)
    cut, page = await admin.get(TOKENS), await admin.get("/tokens")
    assert ([row["name"] for row in cut.json()["tokens"]], cut.json()["more"]) == (["second", "first"], True)
    assert "There are older ones" in page.text


async def test_a_revoked_token_takes_along_what_was_made_with_it(
    *, app: FastAPI, pool: Pool, access: Pool, admin: httpx.AsyncClient, make_token: MakeToken, tenant: str
) -> None:
    """Somebody who took a token made two more, one out of the other: none of the three opens anything any more."""
    async with client_of(app, await make_token(name="taken")) as taken:
        _, first = await make(taken, "first")
        async with client_of(app, first) as child:
            _, second = await make(child, "second")
        _, browser = await make(taken, "in a browser")
        rows = {row.name: row for row in await list_tokens(access, tenant)}
        async with client_of(app) as signed_in:
            await signed_in.post("/sign-in", data={"token": browser})
            answer = await admin.post(f"{TOKENS}/{rows['taken'].id}/revoke")
            assert answer.status_code == 200
            assert {row["name"] for row in answer.json()["also_revoked"]} == {"first", "second", "in a browser"}
            assert (await signed_in.get("/api/v1/me")).status_code == 401
        for secret in (first, second):
            assert await token_principal(access, secret) is None
        assert (await taken.get("/api/v1/me")).status_code == 401
    assert (await admin.get("/api/v1/me")).status_code == 200
    lines = [line for line in await list_audit(pool, tenant) if line.action == "token_revoked"]
    root = rows["taken"].id
    said = {
        (line.after["name"], line.after.get("made_with"), line.after.get("revoked_with"))
        for line in lines
        if line.after
    }
    assert said == {
        ("taken", None, None),
        ("first", root, root),
        ("second", rows["first"].id, root),
        ("in a browser", root, root),
    }
    again = await admin.post(f"{TOKENS}/{root}/revoke")
    assert again.status_code == 404


async def test_the_page_says_what_is_revoked_with_a_token(
    app: FastAPI, make_token: MakeToken, access: Pool, tenant: str
) -> None:
    """Whoever is about to revoke a token is asked with the names of those that go with it."""
    async with client_of(app, await make_token(name="parent")) as parent:
        await make(parent, "child")
        page = await parent.get("/tokens", headers={"Accept": "text/html"})
    assert "Revoke parent and 1 made with it (child)?" in page.text
    rows = await list_tokens(access, tenant)
    ids = {row.name: row.id for row in rows}
    assert [row.name for row in made_with(rows, ids["parent"])] == ["child"]
    assert made_with(rows, ids["child"]) == []


async def test_no_token_is_made_with_one_that_is_being_revoked(access: Pool, tenant: str) -> None:
    """However they meet: what a token has made is revoked with it, or is never made."""
    wish = TokenRequest(name="n", role=Role.ADMIN, tenant=tenant, created_by="t", person="p", lasts=timedelta(hours=1))
    for _ in range(5):
        root = await create_token(access, wish)
        child = TokenRequest(**{**vars(wish), "made_with": root.id})
        made = asyncio.gather(*(create_token(access, child) for _ in range(6)), return_exceptions=True)
        await asyncio.sleep(0)
        await revoke_token(access, tenant, root.id, "the tests")
        results = await made
        assert {type(each) for each in results} <= {NewToken, InvalidInput}
        for each in results:
            if isinstance(each, NewToken):
                assert await token_principal(access, each.secret) is None
    with pytest.raises(InvalidInput, match="has expired or was revoked"):
        await create_token(access, child)


async def test_a_token_is_revoked_by_a_beginning_of_its_id(
    admin: httpx.AsyncClient, owner: httpx.AsyncClient, access: Pool, tenant: str
) -> None:
    """One that no other token of the caller's has is enough; one of another tenant is not found by it."""
    made, secret = await make(admin, "left behind")
    assert (await admin.post(f"{TOKENS}/tok_/revoke")).status_code == 404
    assert (await owner.post(f"{TOKENS}/{made[:10]}/revoke", params={"tenant": f"not-{tenant}"})).status_code == 404
    answer = await admin.post(f"{TOKENS}/{made.removeprefix('tok_')[:10]}/revoke")
    assert (answer.status_code, answer.json()["id"]) == (200, made)
    assert await token_principal(access, secret) is None
