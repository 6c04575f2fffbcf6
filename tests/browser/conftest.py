"""A real browser: Debian's Chromium, installed when it is missing and can be."""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page, async_playwright

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-background-networking"]
PATIENCE = 240


@pytest.fixture(scope="session")
def chromium() -> str:
    """Where Chromium is. Where it cannot be had: a failure in CI, a skip elsewhere."""
    if not shutil.which(CHROMIUM) and os.geteuid() == 0 and shutil.which("apt-get"):
        for words in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
            subprocess.run(["apt-get", "--quiet", *words], check=False, capture_output=True, timeout=PATIENCE)
    if not shutil.which(CHROMIUM):
        reason = f"no Chromium: there is no {CHROMIUM}; install it, or set CHROMIUM to where it is"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return CHROMIUM


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
