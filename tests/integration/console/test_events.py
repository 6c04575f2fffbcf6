"""Live changes over real HTTP: as they happen, of the caller's tenant alone, without gaps."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from console.api import events
from store.dead_letters import put_orphaned, record_exhausted
from store.tenancy import Pool
from store.tokens import list_tokens, revoke_token
from tests.integration.console.conftest import MakeToken
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
