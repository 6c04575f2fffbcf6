"""Operators can work from the Temporal Web UI alone: what failed, and how to replay it, stands there."""

import json
import re

from playwright.async_api import Page, expect

from redrive import Registry, RunStatus
from redrive.connection import owner_database_url
from redrive.dead_letters import LetterStatus
from redrive.starter.stack.state import StackInfo
from tests.conftest import Running, WorkerFactory
from tests.integration.dead_letters.lab import Case, register


def case_of(running: Running) -> Case:
    url = owner_database_url(running.settings)
    return Case(running.redrive, running.temporal, url, running.settings.task_queue)


async def open_details(page: Page, stack: StackInfo, workflow_id: str) -> None:
    """Open a workflow's page and the tab with its current details."""
    await page.goto(f"{stack.web_ui}/namespaces/{stack.namespace}/workflows/{workflow_id}")
    await page.get_by_text("User Metadata").first.click(timeout=60_000)


async def test_web_ui_tells_what_failed_and_how_to_replay(
    worker: WorkerFactory, registry: Registry, stack: StackInfo, browser_page: Page
) -> None:
    """On the page of the parked run and on that of its dead letter queue."""
    register(registry)
    async with worker() as running:
        case = case_of(running)
        case.service.error = "the ledger says <b>no</b> & [stop](http://evil.example)"
        await case.park("second")
        for workflow_id in (case.run_id, case.queue.id):
            await open_details(browser_page, stack, workflow_id)
            body = browser_page.frame_locator("iframe").last.locator("body")
            await expect(body).to_contain_text("second", timeout=60_000)
            await expect(body).to_contain_text("validation")
            await expect(body).to_contain_text("the ledger says <b>no</b> & [stop](http://evil.example)")
            await expect(body).to_contain_text("send the signal replay")
            await expect(body).to_contain_text('"request_id": "any-new-id"')
            assert await browser_page.locator("a[href*='evil.example']").count() == 0
        await case.works_still()


async def test_web_ui_sends_the_signal_that_replays(
    worker: WorkerFactory, registry: Registry, stack: StackInfo, browser_page: Page
) -> None:
    """From the page of the dead letter queue, with the form that Temporal has for signals."""
    register(registry)
    async with worker() as running:
        case = await case_of(running).park("second")
        case.mend()
        page = browser_page
        await page.goto(f"{stack.web_ui}/namespaces/{stack.namespace}/workflows/{case.queue.id}")
        await page.get_by_role("button", name=re.compile("More Actions")).first.click(timeout=60_000)
        await page.get_by_role("menuitem", name="Send a Signal").first.click()
        await page.get_by_role("button", name="Select a signal").click()
        await expect(page.get_by_role("option", name="replay")).to_be_visible(timeout=60_000)
        options = [(await each.inner_text()).split("\n")[0] for each in await page.get_by_role("option").all()]
        assert options == ["Custom", "discard", "replay", "resolve"]
        await page.get_by_role("option", name="replay").click()
        await page.get_by_role("textbox", name="Data").first.fill(json.dumps(case.addressed()))
        # Not by the mouse: when the field is left, the form lays the document out, and its button moves away.
        await page.get_by_role("button", name="Submit").first.press("Enter")
        await case.until(RunStatus.SUCCESS)
        record = await case.until_letter("second", LetterStatus.REPLAYED)
    assert (record["replayed_by"], record["replay_count"]) == ("ada", 1)
