"""A real browser: Debian's Chromium, installed when it is missing and can be."""

import os
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page, async_playwright

from tests import debian

CHROMIUM = os.environ.get("CHROMIUM", "chromium")
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="session")
def chromium() -> str:
    """Where Chromium is."""
    return debian.find(CHROMIUM, "chromium")


@pytest.fixture(scope="module")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    """One Chromium for all tests of a file."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        await browser.close()


@pytest.fixture
async def browser_page(browser: Browser) -> AsyncIterator[Page]:
    """A page of Chromium."""
    page = await browser.new_page(viewport={"width": 1600, "height": 1200})
    yield page
    await page.close()
