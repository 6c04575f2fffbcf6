"""Rows of an outbox, in a real browser: a real bridge makes runs of them on a real stack."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, expect
from pydantic import SecretStr

from redrive.access import Role
from redrive.outbox.rows import OutboxStatus
from redrive.outbox.settings import OutboxSettings
from tests.browser.pages import PATIENCE, Pages, press, serious_violations, serving
from tests.conftest import WorkerFactory
from tests.integration.outbox.conftest import outbox, outbox_lab, team_url
from tests.integration.outbox.outbox_lab import OutboxLab

__all__ = ["outbox", "outbox_lab", "team_url"]

expect.set_options(timeout=PATIENCE)
EVIL = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"


@pytest.fixture
async def pages(outbox_lab: OutboxLab, browser: Browser) -> AsyncIterator[Pages]:
    """A console that shows the test's outbox, for its tenant."""
    outbox = outbox_lab.outbox
    known = OutboxSettings.model_construct(database=SecretStr(outbox.url), schema_name=outbox.schema)
    async with serving(outbox_lab.settings, browser, known) as pages:
        pages.tenant = outbox_lab.tenant
        yield pages


async def test_a_failed_row_is_found_among_the_events_and_replayed(
    outbox_lab: OutboxLab, worker: WorkerFactory, pages: Pages
) -> None:
    """Rows are a view of the events; a failed one is replayed on its page, which follows it without a reload."""
    async with outbox_lab.bridge(), worker():
        good = await outbox_lab.enqueue(1, key="order:ann:1")
        await outbox_lab.becomes(good, OutboxStatus.DELIVERED)
        outbox_lab.is_broken = True
        failed = await outbox_lab.becomes(
            await outbox_lab.enqueue(2, key="order:ann:2", labels={"mission_id": "42"}), OutboxStatus.FAILED
        )
        page = await pages.signed_in()
        await page.get_by_role("navigation", name="Pages").get_by_role("link", name="Events").click()
        await page.get_by_role("navigation", name="Views").get_by_role("link", name="Outbox").click()
        rows = page.locator("tbody tr")
        await expect(rows.locator(".status")).to_have_text(["failed", "delivered"])
        assert await serious_violations(page) == []
        await page.get_by_label("Status").select_option("failed")
        await page.get_by_role("button", name="Filter").click()
        await expect(rows).to_have_count(1)
        await press(page, "j", "Enter")
        await expect(page.locator(".cause .error")).to_have_text("the shop is closed")
        await expect(page.locator(".facts")).to_contain_text("mission_id")
        assert await serious_violations(page) == []
        outbox_lab.is_broken = False
        form = page.locator("form[data-api*='/replay']")
        await form.get_by_label("Reason").fill("the shop is open again")
        await form.get_by_role("button", name="Replay").click()
        await expect(page.locator(".cause .status")).to_have_text("delivered")
        await expect(page.locator("#cycles")).to_contain_text("replayed by the admin")
        await expect(form).to_have_count(0)
        await page.locator(".facts").get_by_role("link", name=failed.run_id or "").click()
        await expect(page.locator("#main .status").first).to_have_text("success")
    assert outbox_lab.seen == [1, 2]


async def test_a_new_row_appears_in_the_list_without_a_reload(
    outbox_lab: OutboxLab, worker: WorkerFactory, pages: Pages
) -> None:
    """Also if no row was on its way when the list was opened."""
    page = await pages.signed_in()
    await page.goto("/events/outbox")
    await expect(page.locator("#main")).to_contain_text("Nothing here")
    async with outbox_lab.bridge(), worker():
        await outbox_lab.enqueue(1, key="order:ann:1")
        await expect(page.locator("tbody tr .status")).to_have_text(["delivered"])


@pytest.mark.parametrize(("role", "may"), [(Role.VIEWER, False), (Role.ADMIN, True)])
async def test_a_row_without_a_run_is_shown_to_each_role_as_text(
    outbox_lab: OutboxLab, pages: Pages, role: Role, may: bool
) -> None:
    """Its error is shown as text; payload and replay are for those who may, also in the dark and on a phone."""
    event_id = await outbox_lab.enqueue(key="order:evil", payload={"item": EVIL, "number": 3})
    statement = "SELECT {}.outbox_not_started($1, $2, 'validation', NULL)"
    await outbox_lab.sql(statement, (await outbox_lab.row(event_id)).event_id, f"item: {EVIL} is no item")
    page = await pages.signed_in(role, color_scheme="dark")
    await page.set_viewport_size({"width": 360, "height": 740})
    for address in ("/events/outbox", f"/events/outbox/{event_id}"):
        await page.goto(address)
        await expect(page.locator("#main")).to_contain_text("is no item")
        assert await page.evaluate("window.hacked") is None
        assert await serious_violations(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth") == 360
    assert ('"number": 3' in await page.locator("#main").inner_text()) is may
    assert (await page.get_by_role("button", name="Replay").count() == 1) is may
