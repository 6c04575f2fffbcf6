"""Rows of an outbox over HTTP and on the pages. No bridge runs here."""

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

import redrive.outbox
from redrive.access import Role
from redrive.console.app import build_app
from redrive.outbox.rows import Outbox, install
from redrive.outbox.settings import OutboxSettings
from redrive.settings import Settings
from redrive.starter.stack.state import StackInfo
from tests.conftest import owner_url
from tests.integration.console.conftest import MakeToken, client_of
from tests.integration.store.letters import new_tenant

ROWS = "/api/v1/outbox"
WHY = {"reason": "the shop is open again"}
BROWSER = {"accept": "text/html"}


@dataclass(frozen=True)
class Shop:
    """An outbox in Redrive's own database, and a console that shows it."""

    app: FastAPI
    outbox: Outbox

    async def enqueue(self, tenant: str, **options: Any) -> str:
        """Ask for a run."""
        pool = await self.outbox.database.pool()
        async with pool.acquire() as connection:
            payload = {"item": "lamp", "password": "hunter2"}
            given = {"tenant": tenant, "schema": self.outbox.schema} | options
            return str(await redrive.outbox.enqueue(connection, "order", payload, **given))

    async def fail(self, event_id: str) -> None:
        """Let a row be as a bridge leaves one that does not fit."""
        statement = f"SELECT {self.outbox.schema}.outbox_not_started($1, 'item: is wrong', 'validation', NULL)"
        await (await self.outbox.database.pool()).execute(statement, uuid.UUID(event_id))


@pytest.fixture
async def shop(console_settings: Settings, stack: StackInfo) -> AsyncIterator[Shop]:
    """A console of its own. The application's login does all of it: installing there has let it in."""
    schema = f"shop_{uuid.uuid4().hex[:8]}"
    await install(owner_url(stack), schema)
    app = build_app(console_settings, outbox=OutboxSettings.model_construct(schema_name=schema))
    async with (
        app.router.lifespan_context(app),
        Outbox(stack.database_url.get_secret_value(), schema, max_size=2) as outbox,
    ):
        yield Shop(app, outbox)


async def test_rows_are_listed_for_their_tenant_alone(shop: Shop, tenant: str, make_token: MakeToken) -> None:
    """A tenant sees its rows, by status and key; another's are not found. An owner sees all."""
    mine, others = await shop.enqueue(tenant, key="mine"), await shop.enqueue(new_tenant(), key="theirs")
    await shop.fail(mine)
    async with client_of(shop.app, await make_token()) as admin:
        assert [row["key"] for row in (await admin.get(ROWS)).json()["rows"]] == ["mine"]
        assert (await admin.get(ROWS, params={"status": "delivered"})).json()["rows"] == []
        (row,) = (await admin.get(ROWS, params={"status": "failed", "key": "mine"})).json()["rows"]
        assert (row["attempts"], row["last_error"], row["category"]) == (1, "item: is wrong", "validation")
        assert (await admin.get(f"{ROWS}/{others}")).status_code == 404
        assert (await admin.post(f"{ROWS}/{others}/replay", json=WHY)).status_code == 404
    async with client_of(shop.app, await make_token(Role.OWNER)) as owner:
        assert len((await owner.get(ROWS)).json()["rows"]) == 2
        first = (await owner.get(ROWS, params={"limit": 1})).json()
        second = (await owner.get(ROWS, params={"limit": 1, "cursor": first["cursor"]})).json()
        assert {row["key"] for row in first["rows"] + second["rows"]} == {"mine", "theirs"}


async def test_payload_is_redacted_and_for_those_who_may(shop: Shop, tenant: str, make_token: MakeToken) -> None:
    """An admin sees it without its secrets, a viewer not at all."""
    event_id = await shop.enqueue(tenant)
    async with client_of(shop.app, await make_token()) as admin:
        detail = (await admin.get(f"{ROWS}/{event_id}")).json()
        assert (detail["payload"]["item"], detail["payload_hidden"]) == ("lamp", False)
        page = (await admin.get(f"/events/outbox/{event_id}", headers=BROWSER)).text
    assert "hunter2" not in str(detail) + page
    async with client_of(shop.app, await make_token(Role.VIEWER)) as viewer:
        assert (await viewer.get(f"{ROWS}/{event_id}")).json()["payload"] is None


async def test_failed_row_is_replayed_once(shop: Shop, tenant: str, make_token: MakeToken) -> None:
    """A replay makes it pending, in the caller's name; again it is refused, as for any row that has not failed."""
    event_id = await shop.enqueue(tenant)
    async with client_of(shop.app, await make_token()) as admin:
        early = await admin.post(f"{ROWS}/{event_id}/replay", json=WHY)
        assert (early.status_code, early.json()["code"]) == (409, "command_refused")
        await shop.fail(event_id)
        done = await admin.post(f"{ROWS}/{event_id}/replay", json=WHY)
        assert (done.status_code, done.json()["status"], done.json()["generation"]) == (202, "pending", 1), done.text
        assert (await admin.post(f"{ROWS}/{event_id}/replay", json=WHY)).status_code == 409
        row = (await admin.get(f"{ROWS}/{event_id}")).json()
    assert row["replayed_by"].startswith("test admin")
    assert (row["replay_reason"], len(row["failure_history"])) == (WHY["reason"], 1)


async def test_rows_are_a_view_of_the_events_page(shop: Shop, tenant: str, make_token: MakeToken) -> None:
    """The list and a failed row's page, with its error and the form of its replay."""
    event_id = await shop.enqueue(tenant, ordering_key="ann")
    await shop.enqueue(tenant, ordering_key="ann", key="behind")
    await shop.fail(event_id)
    async with client_of(shop.app, await make_token()) as admin:
        listed = (await admin.get("/events/outbox", headers=BROWSER)).text
        assert f"/events/outbox/{event_id}" in listed
        assert "waits" in listed
        assert "item: is wrong" in listed
        page = (await admin.get(f"/events/outbox/{event_id}", headers=BROWSER)).text
        assert f'data-api="/api/v1/outbox/{event_id}/replay"' in page
        assert "/events/outbox" in (await admin.get("/events", headers=BROWSER)).text


async def test_without_an_outbox_the_list_is_empty(admin: httpx.AsyncClient) -> None:
    """A console in whose database there is none says so by an empty list, not by an error."""
    assert (await admin.get(ROWS)).json() == {"rows": [], "cursor": None}
    assert "Nothing here" in (await admin.get("/events/outbox", headers=BROWSER)).text


async def test_a_row_is_named_by_a_beginning_of_its_id(shop: Shop, tenant: str, make_token: MakeToken) -> None:
    """One that no other row has names it; one that two rows have is refused, and says how many there are."""
    pool = await shop.outbox.database.pool()
    for number, made in enumerate([await shop.enqueue(tenant) for _ in range(2)], 1):
        known = uuid.UUID(f"abcdef01{number}".ljust(32, "0"))
        statement = f"UPDATE {shop.outbox.schema}.outbox SET event_id = $1 WHERE event_id = $2"  # noqa: S608
        await pool.execute(statement, known, uuid.UUID(made))
    async with client_of(shop.app, await make_token()) as admin:
        assert (await admin.get(f"{ROWS}/abcdef01-2")).json()["event_id"].startswith("abcdef01-2000")
        unclear = await admin.get(f"{ROWS}/abcdef01")
        assert (unclear.status_code, "2 ids begin with it" in unclear.text) == (400, True)
        assert (await admin.get(f"{ROWS}/nonsense")).status_code == 404


async def test_page_says_what_a_replay_does_without_a_run(shop: Shop, tenant: str, make_token: MakeToken) -> None:
    """A row that did not fit has no run that could continue; one that waits for its time says until when."""
    failed = await shop.enqueue(tenant, key="failed")
    await shop.fail(failed)
    later = await shop.enqueue(tenant, key="later", run_after=datetime.now(UTC) + timedelta(days=1))
    async with client_of(shop.app, await make_token()) as admin:
        page = (await admin.get(f"/events/outbox/{failed}", headers=BROWSER)).text
        assert "It has no run yet: its start is tried again" in page
        assert "Not before" not in page
        assert "Not before" in (await admin.get(f"/events/outbox/{later}", headers=BROWSER)).text
