"""A real browser: Debian's Chromium without windows, installed when it is missing and can be."""

import os
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page, async_playwright

from redrive import Registry
from tests import debian
from tests.browser.pages import Pages, serving
from tests.conftest import Running, WorkerFactory
from tests.integration.dead_letters.lab import register

# Takes less than half of the CPU that Chromium with its windows does.
PACKAGE = "chromium-headless-shell"
CHROMIUM = os.environ.get("CHROMIUM", PACKAGE)
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="session")
def chromium() -> str:
    """Where Chromium is."""
    return debian.find(CHROMIUM, PACKAGE)


@pytest.fixture(scope="session")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    """One Chromium for all tests: each page that they open is of a context of its own."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        await browser.close()


@pytest.fixture
async def browser_page(browser: Browser) -> AsyncIterator[Page]:
    """A page of Chromium."""
    page = await browser.new_page(viewport={"width": 1600, "height": 1200}, reduced_motion="reduce")
    yield page
    await page.close()


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
