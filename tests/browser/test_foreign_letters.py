"""A dead letter of somebody else's workflow in a real browser: its page, and a reset with its warning."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Page, expect
from temporalio.client import Client, WorkflowExecutionStatus

from redrive.dead_letters import LetterStatus
from redrive.plugin import DeadLetters
from tests.browser.pages import PATIENCE, Pages, serious_violations
from tests.conftest import Running
from tests.integration.plugin import lab, project

expect.set_options(timeout=PATIENCE)


@pytest.fixture
async def users(running: Running, pages: Pages) -> AsyncIterator[lab.Project]:
    """A project with the plugin, of the test's tenant."""
    plugin = DeadLetters(["*"], tenant=pages.tenant, task_queue=running.settings.task_queue)
    client = await Client.connect(running.settings.temporal_address or "", plugins=[plugin])
    async with lab.running(lab.Project(client, running.redrive, pages.owner_url, plugin)) as users:
        yield users


async def fits(page: Page) -> bool:
    """Tell whether nothing has to be scrolled to the side."""
    return bool(await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


async def test_operator_resets_a_foreign_workflow(users: lab.Project, pages: Pages) -> None:
    """The page warns; a reset starts a new run, closes the dead letter with who and why, and is not offered again."""
    users.broken("ship")
    handle = await users.start(project.OrderWorkflow.run, users.order())
    [letter] = await users.parked(handle)
    page = await pages.signed_in()
    await page.goto(f"/dead-letters/{letter['id']}")
    await expect(page.locator(".cause h1")).to_have_text("OrderWorkflow › ship")

    commands = page.locator("#commands")
    reset = commands.locator("details").filter(has=page.locator("form[data-api$='/reset']"))
    warning = reset.get_by_text("A new run does everything again")
    await expect(warning).to_be_hidden()
    await reset.locator("summary").click()
    await expect(warning).to_contain_text("whoever waits for it is told so")
    assert await serious_violations(page) == []
    await page.set_viewport_size({"width": 360, "height": 780})
    assert await fits(page)
    await page.set_viewport_size({"width": 1280, "height": 900})

    users.broken()
    await reset.get_by_role("button", name="Reset").click()
    assert not await reset.get_by_label("Reason").evaluate("field => field.validity.valid")
    await reset.get_by_label("Reason").fill("the new code takes another way")
    await reset.get_by_role("button", name="Reset").click()
    await expect(page.locator(".cause .status")).to_have_text("discarded")
    await expect(page.locator("#done")).to_contain_text("the new code takes another way")
    await expect(page.locator("#done")).to_contain_text("Its workflow had ended.")
    await expect(page.locator("#trail")).to_contain_text("the new code takes another way")
    await expect(commands).to_contain_text("Nothing is left to do")
    await expect(reset).to_have_count(0)
    assert await serious_violations(page) == []

    assert await users.client.get_workflow_handle(handle.id).result() == "1: shipped o-1 in 3"
    old = users.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
    assert (await old.describe()).status is WorkflowExecutionStatus.TERMINATED
    assert len(users.outside.called("ship")) == 2
    await users.closed(handle, LetterStatus.DISCARDED)
    await page.goto("/audit")
    line = page.locator("#main tr, #main li").filter(has_text="the new code takes another way")
    await expect(line.first).to_contain_text("the admin")
    await page.goto(f"/dead-letters/{letter['id']}")
    await expect(commands).to_contain_text("Nothing is left to do")
    await expect(commands.locator("form")).to_have_count(0)


async def test_a_replayed_foreign_letter_says_what_happened_and_offers_nothing(
    users: lab.Project, pages: Pages
) -> None:
    """Its workflow went on; no form is left."""
    users.broken("charge")
    handle = await users.start(project.OrderWorkflow.run, users.order())
    [letter] = await users.parked(handle)
    users.broken()
    page = await pages.signed_in()
    await page.goto(f"/dead-letters/{letter['id']}")
    replay = page.locator("form[data-planned]")
    await replay.get_by_label("Reason").fill("the provider is back")
    await replay.get_by_role("button", name="Replay").click()
    await expect(page.locator(".cause .status")).to_have_text("replayed")
    await expect(page.locator("#done")).to_contain_text("The workflow went on.")
    await expect(page.locator("#commands form")).to_have_count(0)
    assert await handle.result() == "1: shipped o-1 in 3"
