"""Retries in flight and the line of time of a run, in a real browser on a real stack."""

import re
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page, expect

from redrive import Registry
from tests.browser.pages import PATIENCE, Pages, serious_violations, serving
from tests.conftest import Running, WorkerFactory
from tests.integration.dead_letters.lab import Case, register

expect.set_options(timeout=PATIENCE)


@pytest.fixture
async def running(worker: WorkerFactory, registry: Registry) -> AsyncIterator[Running]:
    """A worker that knows the laboratory's pipelines."""
    register(registry)
    async with worker() as running:
        yield running


@pytest.fixture
async def pages(running: Running, browser: Browser) -> AsyncIterator[Pages]:
    """A console for that worker's runs."""
    async with serving(running.settings, browser) as pages:
        yield pages


def case_of(running: Running, pages: Pages) -> Case:
    """Return a run to be, of the test's tenant."""
    case = Case(running.redrive, running.temporal, pages.database_url, running.settings.task_queue)
    case.tenant = pages.tenant
    case.service.error = "the bank does not answer, and has not for a long time"
    return case


async def start_waiting(running: Running, pages: Pages) -> Case:
    """Start a run whose step fails, and waits a minute for its next attempt."""
    case = case_of(running, pages)
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
    await expect(page.get_by_role("img", name=re.compile("failed tries: 1"))).to_be_visible()
    parked = await case_of(running, pages).park("second")
    await page.set_viewport_size({"width": 360, "height": 780})
    await page.emulate_media(color_scheme="dark")
    for address in (page.url, f"/runs/{parked.run_id}", "/retrying", "/"):
        await page.goto(address)
        assert await fits(page), address
        assert await serious_violations(page) == []
