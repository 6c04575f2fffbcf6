"""Temporal's Web UI in the console: what an owner sees and does there, and what nobody else can."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, ConsoleMessage, expect
from temporalio.client import Client

from redrive.access import Role
from redrive.console.authentication import SESSION
from redrive.settings import Settings
from redrive.starter.stack.children import Supervisor
from redrive.starter.stack.ports import reserve
from redrive.starter.stack.state import StackInfo
from redrive.starter.stack.temporal_server import WEB_UI_PATH, TemporalServer, find_temporal
from redrive.store.access import create_link
from tests.browser.pages import PATIENCE, Pages, serving
from tests.conftest import eventually

WORKFLOW = "shown-in-the-console"
NAMESPACES = f"{WEB_UI_PATH}/api/v1/namespaces"
SIGNAL = f"{NAMESPACES}/default/workflows/{WORKFLOW}/signal/hello"


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TemporalServer]:
    """A Temporal server whose Web UI lives below the console's path."""
    directory: Path = tmp_path_factory.mktemp("temporal")
    ports = [reserve("a test", asked=None, preferred=17_300) for _ in range(2)]
    server = TemporalServer(
        find_temporal(),
        directory / "data" / "temporal.db",
        port=ports[0].number,
        web_ui_port=ports[1].number,
        web_ui_path=WEB_UI_PATH,
    )
    supervisor = Supervisor(directory)
    try:
        await supervisor.start(server.program)
        client = await Client.connect(server.address)
        await client.start_workflow("nobody-runs-it", id=WORKFLOW, task_queue="nowhere")
        yield server
    finally:
        await supervisor.stop()
        for port in ports:
            port.close()


@pytest.fixture(scope="module")
async def proxied(
    stack: StackInfo, server: TemporalServer, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Pages]:
    """A console that shows that server's Web UI."""
    settings = Settings(
        temporal_address=server.address,
        database_url=stack.database_url,
        access_database_url=stack.access_url,
        owner_database_url=stack.owner_url,
        state_dir=tmp_path_factory.mktemp("console"),
        web_ui_proxy=f"http://127.0.0.1:{server.web_ui_port}",
        stranger_limit="100000/minute",
    )
    async with serving(settings, browser) as pages:
        yield pages


async def _signals(server: TemporalServer) -> int:
    client = await Client.connect(server.address)
    history = await client.get_workflow_handle(WORKFLOW).fetch_history()
    return sum(event.HasField("workflow_execution_signaled_event_attributes") for event in history.events)


async def test_an_owner_uses_the_web_ui_behind_the_sign_in(proxied: Pages, server: TemporalServer) -> None:
    """It shows a run, and a signal that is sent from there arrives; nothing that it loads from itself is refused."""
    page = await proxied.signed_in(Role.OWNER)
    refused: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text and WEB_UI_PATH in message.text.partition("violates")[0]:
            refused.append(message.text)

    page.on("console", note)
    answer = await page.goto(f"{WEB_UI_PATH}/namespaces/default/workflows/{WORKFLOW}")
    assert answer
    assert "'sha256-" in answer.headers["content-security-policy"]
    await expect(page.get_by_text("nobody-runs-it").first).to_be_visible(timeout=PATIENCE)
    before = await _signals(server)
    await page.get_by_role("button", name=re.compile("More Actions")).first.click()
    await page.get_by_role("menuitem", name="Send a Signal").first.click()
    await page.locator("#signal-name:visible").fill("hello")
    await page.get_by_role("button", name="Submit").first.click()

    async def arrived() -> bool:
        return await _signals(server) == before + 1

    await eventually(arrived)
    assert refused == []


async def test_a_script_that_was_not_in_the_page_does_not_run(proxied: Pages) -> None:
    """What got into a page of the Web UI runs no script, and asks nothing of the console with the owner's session."""
    page = await proxied.signed_in(Role.OWNER)
    await page.goto(f"{WEB_UI_PATH}/namespaces/default/workflows")
    await page.evaluate(
        """() => {
            const script = document.createElement("script")
            script.textContent = "window.got = 1"
            document.body.append(script)
        }"""
    )
    assert await page.evaluate("() => window.got") is None
    asked = "path => fetch(path).then(answer => answer.status).catch(() => 'refused')"

    async def may_ask_temporal() -> bool:
        return bool(await page.evaluate(asked, NAMESPACES) == 200)

    # While the page loads it may end what it has asked for.
    await eventually(may_ask_temporal)
    assert await page.evaluate(asked, "/api/v1/me") == "refused"


async def test_strangers_are_led_to_the_sign_in_and_back(proxied: Pages) -> None:
    """Nobody sees a page of the Web UI without a session, nor what it would load."""
    page = await proxied.visitor()
    await page.goto(f"{WEB_UI_PATH}/namespaces/default/workflows")
    await expect(page).to_have_url(re.compile(r"/sign-in\?next=%2Ftemporal%2Fnamespaces"))
    async with httpx.AsyncClient(base_url=proxied.address) as client:
        assert (await client.get(NAMESPACES)).status_code == 401
        assert (await client.get(f"{WEB_UI_PATH}/../api/v1/namespaces")).status_code in {401, 404}


@pytest.mark.parametrize("role", [Role.ADMIN, Role.STAFF, Role.VIEWER])
async def test_the_web_ui_is_for_owners_alone(proxied: Pages, role: Role) -> None:
    """It shows all tenants: a role in one of them does not open it."""
    async with await _client(proxied, role) as client:
        assert (await client.get(NAMESPACES)).status_code == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"Origin": "https://evil.test"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "own", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "evil.test", "Origin": "http://evil.test"}, 421),
        ({"Host": "evil.test:8300"}, 421),
    ],
)
async def test_changes_from_elsewhere_are_refused(
    proxied: Pages, server: TemporalServer, headers: dict[str, str], status: int
) -> None:
    """A change must say that it comes from a page of this console; a name that is led here opens nothing."""
    before = await _signals(server)
    given = {name: proxied.address if value == "own" else value for name, value in headers.items()}
    async with await _client(proxied, Role.OWNER) as client:
        assert (await client.post(SIGNAL, json={}, headers=given)).status_code == status
    assert await _signals(server) == before


async def test_nothing_of_ours_reaches_the_web_ui_and_no_cookie_of_ours_comes_from_it(proxied: Pages) -> None:
    """The only cookie that it sets is that of its own check, for its own path."""
    async with await _client(proxied, Role.OWNER) as client:
        answer = await client.get(NAMESPACES)
    assert answer.status_code == 200
    cookies = answer.headers.get_list("set-cookie")
    assert [re.match(r"_csrf=\w+; Path=/temporal;", each) is not None for each in cookies] == [True]


async def _client(proxied: Pages, role: Role) -> httpx.AsyncClient:
    link = await create_link(proxied.access, await proxied.token(role))
    async with httpx.AsyncClient(base_url=proxied.address, timeout=30) as stranger:
        session = (await stranger.get(f"/sign-in/link/{link}")).cookies[SESSION]
    return httpx.AsyncClient(base_url=proxied.address, cookies={SESSION: session}, timeout=30)
