"""Live changes over real HTTP: as they happen, of the caller's tenant alone, without gaps."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from redrive.access import Role
from redrive.console.api import live_updates as events
from redrive.console.app import build_app
from redrive.postgres.tenancy import Pool
from redrive.settings import OidcSettings, Settings, TenantLimits
from redrive.starter.stack.state import StackInfo
from redrive.store.access import list_tokens, put_member, revoke_token
from redrive.store.audit import Change
from redrive.store.dead_letters.records import put_orphaned, record_exhausted
from tests.conftest import eventually, owner_url
from tests.integration.console.conftest import MakeToken, served
from tests.integration.console.issuer import CLIENT, serving_issuer
from tests.integration.store.letters import exhausted, new_letter, new_tenant

PATIENCE = 30


async def events_of(client: httpx.AsyncClient, **headers: str) -> AsyncGenerator[tuple[str, str, Any]]:
    """Yield events as (name, id, data)."""
    async with client.stream("GET", "/api/v1/events", headers=headers) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, str] = {}
        async for line in stream.aiter_lines():
            name, _, value = line.partition(": ")
            if line:
                fields[name] = value
            elif "data" in fields:
                yield fields["event"], fields.get("id", ""), json.loads(fields["data"])
                fields = {}


def _client(live: str, token: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=live, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE)


async def test_changes_arrive_as_they_happen(live: str, make_token: MakeToken, pool: Pool, tenant: str) -> None:
    """A dead letter of the tenant is told, another tenant's is not, and a stream that broke goes on after its last."""
    letter = new_letter(tenant)
    async with asyncio.timeout(PATIENCE), _client(live, await make_token()) as client:
        stream = events_of(client)
        assert (await anext(stream))[0] == "resync"
        await record_exhausted(pool, exhausted(new_letter(new_tenant())))
        await record_exhausted(pool, exhausted(letter))
        name, number, change = await anext(stream)
        assert (name, change["dead_letter"], change["status"]) == ("change", letter.workflow_id, "pending")
        await stream.aclose()
        await put_orphaned(pool, letter)
        resumed = events_of(client, **{"Last-Event-ID": number})
        _, following, missed = await anext(resumed)
        assert (missed["action"], int(following)) == ("orphaned", int(number) + 1)
        await resumed.aclose()


async def test_a_revoked_token_ends_its_stream(
    live: str, make_token: MakeToken, access: Pool, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is put out hears no more: the stream asks again with each pulse."""
    monkeypatch.setattr(events, "PULSE", 0.2)
    async with asyncio.timeout(PATIENCE), _client(live, await make_token()) as client:
        stream = events_of(client)
        await anext(stream)
        await revoke_token(access, tenant, (await list_tokens(access, tenant))[0].id, "the tests")
        assert [name async for name, _, _ in stream if name != "change"] == []


@contextlib.asynccontextmanager
async def busy(app: FastAPI, tenant: str) -> AsyncIterator[None]:
    """Have every stream of a tenant told something all the time."""
    change = Change(
        tenant=tenant,
        number=2**40,
        at=datetime.now(UTC),
        action="replayed",
        dead_letter=None,
        run_id=None,
        step=None,
        actor="the tests",
        request_id=None,
        status=None,
    )

    async def tell() -> None:
        while True:
            app.state.app_state.feed._give(change)
            await asyncio.sleep(0.01)

    telling = asyncio.create_task(tell())
    try:
        yield
    finally:
        telling.cancel()


async def test_a_busy_stream_ends_with_its_token(
    *, app: FastAPI, live: str, make_token: MakeToken, access: Pool, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that is never silent asks as often as a silent one whether its caller may listen."""
    monkeypatch.setattr(events, "PULSE", 0.2)
    async with asyncio.timeout(PATIENCE), _client(live, await make_token()) as client, busy(app, tenant):
        stream = events_of(client)
        assert [(await anext(stream))[0] for _ in range(50)][1:] == ["change"] * 49
        await revoke_token(access, tenant, (await list_tokens(access, tenant))[0].id, "the tests")
        async for _ in stream:
            pass


@pytest.mark.parametrize("change", [{"active": False}, {"role": Role.VIEWER}], ids=["removed", "lowered"])
async def test_a_busy_stream_ends_with_a_membership(
    *,
    console_settings: Settings,
    stack: StackInfo,
    tenant: str,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
) -> None:
    """A member who is removed, or has another role from now on, hears no more by the stream that they have opened."""
    monkeypatch.setattr(events, "PULSE", 0.2)
    url = owner_url(stack)
    place: dict[str, Any] = {"tenant": tenant, "role": Role.ADMIN, "changed_by": "the tests"}
    with serving_issuer() as issuer:
        issuer.person = f"ada@{tenant}.example"
        await put_member(url, issuer.person, **place)
        provider = OidcSettings(issuer=issuer.address, client_id=CLIENT)
        app = build_app(console_settings.model_copy(update={"oidc": provider}))
        async with (
            asyncio.timeout(PATIENCE),
            app.router.lifespan_context(app),
            served(app) as address,
            _client(address, issuer.token()) as client,
            busy(app, tenant),
        ):
            stream = events_of(client)
            assert [(await anext(stream))[0] for _ in range(50)][1:] == ["change"] * 49
            await put_member(url, issuer.person, **place | change)
            async for _ in stream:
                pass


def test_streams_ask_early_enough() -> None:
    """Whoever is put out is out within 15 s, with room for the question itself."""
    assert events.PULSE <= 12


async def test_a_tenant_has_so_many_streams_in_all_consoles(
    console_settings: Settings, make_token: MakeToken, tenant: str
) -> None:
    """The next one is refused, by whichever console and token, until one of them has ended."""
    limits = {"*": TenantLimits(streams=2)}
    async with contextlib.AsyncExitStack() as opened:
        await opened.enter_async_context(asyncio.timeout(PATIENCE))
        clients = []
        for _ in range(2):
            app = build_app(console_settings.model_copy(update={"tenant_limits": limits}))
            await opened.enter_async_context(app.router.lifespan_context(app))
            address = await opened.enter_async_context(served(app))
            clients.append(await opened.enter_async_context(_client(address, await make_token())))
        streams = [events_of(client) for client in clients]
        for stream in streams:
            await anext(stream)
        for client in clients:
            refused = await client.get("/api/v1/events")
            assert (refused.status_code, refused.json()["code"]) == (429, "tenant_limit")
            assert "REDRIVE_TENANT_LIMITS: streams" in refused.json()["detail"]
            assert refused.headers["retry-after"]
        await streams[0].aclose()

        async def is_free() -> bool:
            async with clients[1].stream("GET", "/api/v1/events") as answer:
                return answer.status_code == 200

        await eventually(is_free)
        await streams[1].aclose()
