"""The console as a server in this process, browsers signed in to it, and what every page is held to."""

import asyncio
import contextlib
import socket
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import uvicorn
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect

from redrive.access import Role
from redrive.connection import access_database_url, database_url, owner_database_url
from redrive.console.app import build_app
from redrive.outbox.settings import OutboxSettings
from redrive.postgres.database import ACCESS_ROLE, open_pool
from redrive.postgres.tenancy import Pool
from redrive.settings import Settings
from redrive.store.access import TokenRequest, create_link, create_owner_token, create_token
from tests.conftest import Running
from tests.integration.dead_letters.lab import Case
from tests.integration.store.letters import new_tenant

PATIENCE = 30_000


@dataclass
class Pages:
    """A console, and the tenant of one test."""

    address: str
    pool: Pool
    access: Pool
    owner_url: str
    browser: Browser
    tenant: str = field(default_factory=new_tenant)

    async def token(self, role: Role, **changes: Any) -> str:
        """Make a token of a role in the test's tenant."""
        wish = TokenRequest(
            **{
                "name": f"the {role.value}",
                "role": role,
                "tenant": None if role is Role.OWNER else self.tenant,
                "created_by": "the tests",
                "person": f"member:{uuid.uuid4()}",
                "lasts": timedelta(hours=1),
                **changes,
            }
        )
        if role is Role.OWNER:
            return (await create_owner_token(self.owner_url, wish)).secret
        return (await create_token(self.access, wish)).secret

    async def visitor(self, **options: Any) -> Page:
        """Return a page of a browser that nobody is signed in with. What goes wrong in it fails the test."""
        context = await self.browser.new_context(
            base_url=self.address, viewport={"width": 1280, "height": 900}, reduced_motion="reduce", **options
        )
        context.set_default_timeout(PATIENCE)
        return await context.new_page()

    async def signed_in(self, role: Role = Role.ADMIN, *, token: dict[str, Any] | None = None, **options: Any) -> Page:
        """Return a page of a browser that was signed in by a one-time link."""
        page = await self.visitor(**options)
        link = await create_link(self.access, await self.token(role, **(token or {})))
        await page.goto(f"/sign-in/link/{link}")
        return page


@contextlib.asynccontextmanager
async def serving(settings: Settings, browser: Browser, outbox: OutboxSettings | None = None) -> AsyncIterator[Pages]:
    """Serve the console on a free port."""
    app = build_app(settings, outbox=outbox)
    listening = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        async with (
            await open_pool(database_url(settings)) as pool,
            await open_pool(access_database_url(settings), role=ACCESS_ROLE) as access,
        ):
            yield Pages(address, pool, access, owner_database_url(settings), browser)
    finally:
        for context in browser.contexts:
            await context.close()
        app.state.app_state.stopping.set()
        server.should_exit = True
        await running


def case_of(running: Running, pages: Pages) -> Case:
    """Return a run to be, of the test's tenant."""
    case = Case(running.redrive, running.temporal, pages.owner_url, running.settings.task_queue)
    case.tenant = pages.tenant
    return case


async def press(page: Page, *keys: str) -> None:
    """Press keys, one after another, on a page whose script runs: what is pressed before is nobody's."""
    await expect(page.locator("#live")).to_have_attribute("data-state", "on", timeout=PATIENCE)
    for key in keys:
        await page.keyboard.press(key)


async def serious_violations(page: Page) -> list[str]:
    """Return what axe finds on a page that keeps somebody from using it."""
    found = await Axe().run(page)
    return [
        f"{page.url}: {each['id']}: {[node['html'][:200] for node in each['nodes'][:3]]}"
        for each in found.response["violations"]
        if each["impact"] in {"serious", "critical"}
    ]
