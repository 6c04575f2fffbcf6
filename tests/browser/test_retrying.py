"""Retries in flight and the line of time of a run, in a real browser on a real stack."""

import re

from playwright.async_api import Page, expect

from tests.browser.pages import PATIENCE, Pages, case_of, serious_violations
from tests.conftest import Running
from tests.integration.dead_letters.lab import Case

expect.set_options(timeout=PATIENCE)


def _of_the_bank(running: Running, pages: Pages) -> Case:
    case = case_of(running, pages)
    case.service.error = "the bank does not answer, and has not for a long time"
    return case


async def start_waiting(running: Running, pages: Pages) -> Case:
    """Start a run whose step fails, and waits a minute for its next attempt."""
    case = _of_the_bank(running, pages)
    case.service.flaky.add("patient")
    await case.start(pipeline="slow")
    return case


async def fits(page: Page) -> bool:
    """Tell whether nothing has to be scrolled to the side."""
    return bool(await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


async def test_operator_follows_a_retry(running: Running, pages: Pages) -> None:
    """From the overview's count to the list, which grows without a reload, to the run that waits; also on a phone."""
    case = await start_waiting(running, pages)
    page = await pages.signed_in()
    tile = page.locator(".figures > div").filter(has_text="Retries in flight")
    await expect(tile).to_contain_text(re.compile(r"Retries in flight\s*1\s*next in"))
    await tile.get_by_role("link", name="1", exact=True).click()
    await expect(page.locator("tbody tr")).to_contain_text(["the bank does not answer"])
    await start_waiting(running, pages)
    await expect(page.locator("tbody tr")).to_have_count(2)
    assert await serious_violations(page) == []
    await page.locator(f'a[href="/runs/{case.run_id}"]').click()
    await expect(page.locator(".steps .status")).to_have_text("retrying")
    await expect(page.get_by_role("img", name=re.compile("failed attempts: 1"))).to_be_visible()
    parked = await _of_the_bank(running, pages).park("second")
    await page.set_viewport_size({"width": 360, "height": 780})
    await page.emulate_media(color_scheme="dark")
    for address in (page.url, f"/runs/{parked.run_id}", "/retrying", "/"):
        await page.goto(address)
        assert await fits(page), address
        assert await serious_violations(page) == []
