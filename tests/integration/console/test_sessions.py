"""Browsers: how they sign in and out, and what their cookie is good for."""

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta

import httpx
import pytest
from fastapi import FastAPI

from redrive.access import Role
from redrive.console.app import build_app
from redrive.console.authentication import SESSION
from redrive.postgres.tenancy import Pool
from redrive.settings import Settings
from redrive.store.access import create_link, list_tokens, open_token_session, revoke_token
from tests.integration.console.conftest import ADDRESS, MakeToken, client_of

TOKENS = "/api/v1/tokens"
WANTED = {"name": "second", "role": "viewer"}


@contextlib.asynccontextmanager
async def _signed_in(app: FastAPI, token: str) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app) as client:
        answer = await client.post("/sign-in", data={"token": token, "next": "/dlq?status=pending"})
        assert (answer.status_code, answer.headers["Location"]) == (303, "/dlq?status=pending")
        yield client


async def test_a_token_signs_a_browser_in(app: FastAPI, make_token: MakeToken, tenant: str) -> None:
    """The cookie is for the server alone, and opens what the token opens."""
    async with client_of(app) as client:
        answer = await client.post("/sign-in", data={"token": await make_token()})
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert (await client.get("/api/v1/me")).json()["tenant"] == tenant


async def test_over_https_the_cookie_stays_there(console_settings: Settings, make_token: MakeToken) -> None:
    """Where browsers come by HTTPS, the cookie is `Secure` and the browser is told to stay."""
    app = build_app(console_settings.model_copy(update={"console_url": "https://console.test"}))
    async with app.router.lifespan_context(app), client_of(app) as client:
        answer = await client.post("/sign-in", data={"token": await make_token()})
        cookie = answer.headers["Set-Cookie"]
        assert cookie.startswith(f"__Host-{SESSION}=")
        assert {"Secure", "Path=/"} <= set(cookie.split("; "))
        assert "Domain" not in cookie
        assert "max-age" in answer.headers["Strict-Transport-Security"]


async def test_a_change_needs_the_word_of_the_session(app: FastAPI, make_token: MakeToken) -> None:
    """A cookie alone changes nothing: the page's word must come with it, and from this site."""
    async with _signed_in(app, await make_token()) as client:
        word = {"X-CSRF-Token": (await client.get("/api/v1/me")).json()["csrf_token"]}
        without = await client.post(TOKENS, json=WANTED)
        assert (without.status_code, without.json()["code"]) == (403, "csrf")
        elsewhere = await client.post(TOKENS, json=WANTED, headers=word | {"Origin": "http://evil.test"})
        assert (elsewhere.status_code, elsewhere.json()["code"]) == (403, "foreign_origin")
        framed = await client.post(TOKENS, json=WANTED, headers=word | {"Sec-Fetch-Site": "cross-site"})
        assert framed.json()["code"] == "foreign_origin"
        assert (await client.post(TOKENS, json=WANTED, headers=word | {"Origin": ADDRESS})).status_code == 201


async def test_a_link_signs_in_once(app: FastAPI, make_token: MakeToken, access: Pool) -> None:
    """The first to come with the link is let in, the second is not."""
    link = await create_link(access, await make_token())
    async with client_of(app) as client, client_of(app) as second:
        assert (await client.get(f"/sign-in/link/{link}")).status_code == 303
        assert (await client.get("/api/v1/me")).status_code == 200
        again = await second.get(f"/sign-in/link/{link}")
        assert (again.status_code, again.json()["code"]) == (401, "unauthorized")
    assert await create_link(access, "rdt_made-up") is None


async def test_signing_out_ends_the_session(app: FastAPI, make_token: MakeToken) -> None:
    """After it the cookie's secret is worth nothing, wherever a copy of it is."""
    async with _signed_in(app, await make_token()) as client:
        copy = client.cookies[SESSION]
        word = (await client.get("/api/v1/me")).json()["csrf_token"]
        assert (await client.post("/sign-out")).json()["code"] == "csrf"
        assert (await client.post("/sign-out", data={"csrf_token": word})).status_code == 303
        client.cookies.set(SESSION, copy, domain="console.test")
        assert (await client.get("/api/v1/me")).status_code == 401


async def test_a_revoked_token_ends_its_sessions(
    app: FastAPI, make_token: MakeToken, access: Pool, tenant: str
) -> None:
    """Revoking a token puts out the browsers that signed in with it, at once."""
    async with _signed_in(app, await make_token()) as client:
        await revoke_token(access, tenant, (await list_tokens(access, tenant))[0].id, "the tests")
        assert (await client.get("/api/v1/me")).status_code == 401


async def test_a_session_ends_with_its_time(app: FastAPI, make_token: MakeToken, access: Pool) -> None:
    """A session that is too old opens nothing."""
    session = await open_token_session(access, await make_token(), timedelta(microseconds=1))
    async with client_of(app, cookies={SESSION: session or ""}) as client:
        assert (await client.get("/api/v1/me")).status_code == 401


@pytest.mark.parametrize("place", ["//evil.test", "https://evil.test", "/\\evil.test", "javascript:alert(1)", "evil"])
async def test_signing_in_leads_nowhere_else(app: FastAPI, make_token: MakeToken, place: str) -> None:
    """`next` is a path of this console, or it is ignored."""
    async with client_of(app) as client:
        answer = await client.post("/sign-in", data={"token": await make_token(), "next": place})
        assert answer.headers["Location"] == "/"


async def test_too_many_requests_are_told_to_wait(console_settings: Settings, make_token: MakeToken) -> None:
    """One principal's requests are counted; others go on."""
    app = build_app(console_settings.model_copy(update={"rate_limit": "3/hour", "stranger_limit": "3/hour"}))
    async with app.router.lifespan_context(app):
        async with client_of(app, await make_token()) as client:
            statuses = [(await client.get("/api/v1/me")).status_code for _ in range(5)]
            assert statuses == [200, 200, 200, 429, 429]
            refused = await client.get("/api/v1/me")
            assert 0 < int(refused.headers["Retry-After"]) <= 3600
        async with client_of(app, await make_token()) as other, client_of(app) as stranger:
            assert (await other.get("/api/v1/me")).status_code == 200
            statuses = [(await stranger.get("/api/v1/me")).status_code for _ in range(4)]
            assert statuses == [401, 401, 401, 429]


async def test_every_answer_has_the_security_headers(nobody: httpx.AsyncClient) -> None:
    """No inline script, no framing, no sniffing, no cache: on refusals, too."""
    for path in ("/api/v1/me", "/healthz", "/nothing"):
        headers = (await nobody.get(path)).headers
        assert "script-src 'self'" in headers["Content-Security-Policy"]
        assert "unsafe-inline" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"


async def test_over_https_only_the_name_that_nobody_can_plant_counts(
    console_settings: Settings, access: Pool, make_token: MakeToken
) -> None:
    """A session under the bare name, which a sibling domain can set, is no session; nor are two of one name."""
    app = build_app(console_settings.model_copy(update={"console_url": "https://console.test"}))
    session = await open_token_session(access, await make_token(), timedelta(hours=1))
    mine, name = f"__Host-{SESSION}={session}", f"__Host-{SESSION}"
    cookies = {mine: 200, f"{SESSION}={session}": 401, f"{mine}; {name}=another": 401, f"{name}=another; {mine}": 401}
    async with app.router.lifespan_context(app), client_of(app) as client:
        got = {cookie: (await client.get("/api/v1/me", headers={"Cookie": cookie})).status_code for cookie in cookies}
    assert got == cookies


@pytest.mark.parametrize("following", ["http://[x", "//evil.test", "/\\evil.test", "/a b", "/é", "/\n", "javascript:x"])
async def test_the_way_after_the_sign_in_leads_nowhere_else(
    app: FastAPI, make_token: MakeToken, following: str
) -> None:
    """Whatever an address says of where to go next: a path of this console, or its first page."""
    async with client_of(app) as client:
        shown = await client.get("/sign-in", params={"next": following})
        assert shown.status_code == 200
        answer = await client.post("/sign-in", data={"token": await make_token(), "next": following})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")


async def test_owners_alone_choose_a_tenant(app: FastAPI, make_token: MakeToken, tenant: str) -> None:
    """The choice needs the page's own token and is an owner's; afterwards lists lead to it, and open pages stay."""
    visit = {"accept": "text/html", "sec-fetch-mode": "navigate"}
    async with _signed_in(app, await make_token(Role.OWNER)) as owner:
        token = (await owner.get("/api/v1/me")).json()["csrf_token"]
        form = {"tenant": tenant, "next": "/runs?status=FAILED&tenant=old&cursor=x"}
        assert (await owner.post("/tenant", data=form)).status_code == 403
        chosen = await owner.post("/tenant", data=form | {"csrf_token": token})
        assert (chosen.status_code, chosen.headers["location"]) == (303, f"/runs?status=FAILED&tenant={tenant}")
        visited = await owner.get("/bulk?x=1", headers=visit)
        assert (visited.status_code, visited.headers["location"]) == (303, f"/bulk?x=1&tenant={tenant}")
        assert (await owner.get("/bulk", headers={"accept": "text/html"})).status_code == 200
        assert (await owner.get("/bulk?tenant=another", headers=visit)).status_code == 200
        evil = await owner.post("/tenant", data={"csrf_token": token, "tenant": "", "next": "//evil.example/"})
        assert evil.headers["location"] == "/"
        assert (await owner.get("/bulk", headers=visit)).status_code == 200
        assert (await owner.post("/tenant", data={"csrf_token": token, "tenant": "A B"})).status_code == 403
    async with _signed_in(app, await make_token()) as admin:
        token = (await admin.get("/api/v1/me")).json()["csrf_token"]
        assert (await admin.post("/tenant", data={"csrf_token": token, "tenant": tenant})).status_code == 403
        assert (await admin.get("/tenants")).status_code == 403
