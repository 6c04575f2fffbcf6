"""Signing in through an identity provider: its tokens, its keys, its code flow. The provider is real HTTP."""

import base64
import contextlib
import hashlib
import hmac
import time
from collections.abc import AsyncIterator, Iterator

import httpx
import jwt
import pytest
from fastapi import FastAPI

from redrive.access import Role
from redrive.console import oidc
from redrive.console.app import build_app
from redrive.console.authentication import FLOW
from redrive.settings import OidcSettings, Settings
from redrive.starter.stack.state import StackInfo
from redrive.store.access import put_member
from tests.conftest import owner_url
from tests.integration.console.conftest import ADDRESS, client_of
from tests.integration.console.issuer import CLIENT, Issuer, serving_issuer

ME = "/api/v1/me"


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    """A provider of the test's own."""
    with serving_issuer() as issuer:
        yield issuer


@pytest.fixture
async def console(console_settings: Settings, issuer: Issuer) -> AsyncIterator[FastAPI]:
    """A console whose people sign in there."""
    provider = OidcSettings(issuer=issuer.address, client_id=CLIENT)
    app = build_app(console_settings.model_copy(update={"oidc": provider}))
    async with app.router.lifespan_context(app):
        yield app


@pytest.fixture
async def ada(stack: StackInfo, issuer: Issuer, tenant: str) -> str:
    """An admin of the test's tenant, whom the provider knows."""
    issuer.person = f"ada@{tenant}.example"
    await _place(stack, issuer.person, tenant)
    return issuer.person


async def _place(stack: StackInfo, subject: str, tenant: str, *, active: bool = True) -> None:
    url = owner_url(stack)
    await put_member(url, subject, tenant=tenant, role=Role.ADMIN, changed_by="the tests", active=active)


async def _status(console: FastAPI, token: str) -> int:
    async with client_of(console, token) as client:
        return (await client.get(ME)).status_code


async def test_a_members_token_is_taken(console: FastAPI, issuer: Issuer, ada: str, tenant: str) -> None:
    """The provider vouches for the person, our records for their place."""
    async with client_of(console, issuer.token()) as client:
        me = (await client.get(ME)).json()
    assert (me["name"], me["role"], me["tenant"]) == (ada, "admin", tenant)


async def test_membership_must_be_active(
    console: FastAPI, issuer: Issuer, ada: str, stack: StackInfo, tenant: str
) -> None:
    """Whoever has no place, or none any more, is refused with 403: from the next request on."""
    token = issuer.token()
    assert await _status(console, token) == 200
    await _place(stack, ada, tenant, active=False)
    assert await _status(console, token) == 403
    assert await _status(console, issuer.token(email="nobody@example.org")) == 403


async def test_bad_tokens_are_refused(console: FastAPI, issuer: Issuer, ada: str) -> None:
    """Of another issuer, for another client, too old, unsigned, unverified, signed by a stranger: 401 each."""
    claims = jwt.decode(issuer.token(), options={"verify_signature": False})
    stranger = Issuer(issuer.address)
    stranger.key_id = issuer.key_id
    bad = {
        "another issuer": issuer.token(iss="https://elsewhere.example"),
        "another client": issuer.token(aud="somebody-else"),
        "too old": issuer.token(exp=int(time.time()) - 3600),
        "for ever": issuer.token(exp=None),
        "not yet": issuer.token(nbf=int(time.time()) + 3600),
        "an unverified address": issuer.token(email_verified=False),
        "no address": issuer.token(email=None),
        "unsigned": jwt.encode(claims, "", algorithm="none", headers={"kid": issuer.key_id}),
        "signed with a word": jwt.encode(claims, "x" * 32, algorithm="HS256", headers={"kid": issuer.key_id}),
        "signed by a stranger": stranger.token(email=ada),
        "no token at all": "eyJ.eyJ.x",
        "an address that is no text": issuer.token(email="ada\ud800@example.org"),
        "an address with a line break": issuer.token(email="ada@example.org\nbcc"),
    }
    assert {what: await _status(console, token) for what, token in bad.items()} == dict.fromkeys(bad, 401)


async def test_keys_rotate(console: FastAPI, issuer: Issuer, ada: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of a new key is taken at once, one of the old key no more; made-up keys do not flood the provider."""
    old = issuer.token()
    assert await _status(console, old) == 200
    issuer.rotate()
    assert await _status(console, issuer.token()) == 401
    asked = issuer.keys_asked
    assert asked == 1
    monkeypatch.setattr(oidc, "KEYS_PAUSE", -1.0)
    assert await _status(console, issuer.token()) == 200
    assert await _status(console, old) == 401


@contextlib.asynccontextmanager
async def _at_the_provider(console: FastAPI) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """Send a browser to the provider, and yield it with the address that the provider sends it back to."""
    async with client_of(console) as browser, httpx.AsyncClient() as outside:
        away = await browser.get("/sign-in/oidc", params={"next": "/dlq"})
        assert away.status_code == 303
        back = await outside.get(away.headers["Location"])
        yield browser, back.headers["Location"]


async def test_a_browser_signs_in(console: FastAPI, ada: str) -> None:
    """There and back: the browser has a session as the member, and is where it wanted to be."""
    async with _at_the_provider(console) as (browser, back):
        answer = await browser.get(back)
        assert (answer.status_code, answer.headers["Location"]) == (303, "/dlq")
        assert (await browser.get(ME)).json()["name"] == ada
        again = await browser.get(back)
        assert again.status_code == 401


async def test_a_stolen_code_is_worth_nothing(console: FastAPI, ada: str) -> None:
    """In another browser, or with another state, the way back leads nowhere."""
    async with _at_the_provider(console) as (browser, back), client_of(console) as thief:
        assert (await thief.get(back)).status_code == 401
        await thief.get("/sign-in/oidc")
        assert (await thief.get(back)).status_code == 401
        assert (await browser.get(back + "x")).status_code == 401
        assert (await browser.get(ME)).status_code == 401


async def test_a_nonce_that_is_no_text_is_refused(console: FastAPI, issuer: Issuer, ada: str) -> None:
    """The provider's answer to a sign-in may hold anything: the answer is 401, not an error of ours."""
    issuer.nonce = "\ud800"
    async with _at_the_provider(console) as (browser, back):
        assert (await browser.get(back)).status_code == 401


async def test_a_planted_sign_in_is_refused(console: FastAPI, issuer: Issuer, ada: str) -> None:
    """A sign-in that somebody made up for another browser leads nowhere, nor does one beside the browser's own.

    Else whoever can set a cookie signs somebody in as themselves, and reads what they do there.
    """
    secret = "s" * 43
    for cookie in (f"{secret} /", f"x.9999999999 {secret} /", f".9999999999 {secret} /", "", "x"):
        # With the attacker's own account, as the console would have asked the provider for it.
        back = issuer.authorize(_asked(secret))
        async with client_of(console) as victim:
            answer = await victim.get(back, headers={"Cookie": f'{FLOW}="{cookie}"'})
            assert answer.status_code == 401
            assert (await victim.get(ME)).status_code == 401
    async with _at_the_provider(console) as (browser, back), client_of(console) as tossed:
        both = f'{FLOW}="{browser.cookies[FLOW]}"; {FLOW}="x.1 {secret} /"'.replace('""', '"')
        assert (await tossed.get(back, headers={"Cookie": both})).status_code == 401


def _asked(secret: str) -> dict[str, str]:
    """Return what a console asks the provider for in a sign-in with this secret."""
    state, nonce, verifier = (
        hmac.new(secret.encode(), purpose, hashlib.sha256).hexdigest() for purpose in (b"state", b"nonce", b"verifier")
    )
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
    place = f"{ADDRESS}/sign-in/callback"
    return {"redirect_uri": place, "state": state, "nonce": nonce, "code_challenge": challenge}


async def test_over_https_a_sign_in_of_another_name_is_refused(
    console_settings: Settings, issuer: Issuer, ada: str
) -> None:
    """A browser keeps the sign-in under a name that only this host can set: a good one under another name is none."""
    provider = OidcSettings(issuer=issuer.address, client_id=CLIENT)
    changes = {"oidc": provider, "console_url": "https://console.test"}
    app = build_app(console_settings.model_copy(update=changes))
    async with app.router.lifespan_context(app), client_of(app) as browser, httpx.AsyncClient() as outside:
        away = await browser.get("/sign-in/oidc")
        name, _, rest = away.headers["Set-Cookie"].partition("=")
        assert name == f"__Host-{FLOW}"
        value = rest.partition(";")[0]
        back = (await outside.get(away.headers["Location"])).headers["Location"]
        browser.cookies.clear()
        for given, status in ((FLOW, 401), (name, 303)):
            answer = await browser.get(back, headers={"Cookie": f"{given}={value}"})
            assert answer.status_code == status


async def test_a_sign_in_ends_after_ten_minutes(console: FastAPI, ada: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cookie says until when it is good, and is signed: a browser that keeps it longer keeps nothing."""
    monkeypatch.setattr(oidc, "FLOW_LASTS", -1)
    async with _at_the_provider(console) as (browser, back):
        assert (await browser.get(back)).status_code == 401


async def test_a_provider_that_is_away_is_named(console_settings: Settings) -> None:
    """503 with what did not answer: the sign-in can be tried again."""
    provider = OidcSettings(issuer="http://127.0.0.1:9", client_id=CLIENT)
    app = build_app(console_settings.model_copy(update={"oidc": provider}))
    async with app.router.lifespan_context(app), client_of(app) as browser:
        answer = await browser.get("/sign-in/oidc")
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
