"""The documentation site, built and opened."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, Request, expect

from docs_site.__main__ import build

OPENED = ["index.html", "docs/state_machine/index.html", "reference/cli/index.html", "docs/console/index.html"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning or a broken link."""
    return build(tmp_path_factory.mktemp("site") / "build")


async def test_pages_load_nothing_from_other_hosts(site: Path, browser: Browser) -> None:
    """A reader without the internet sees every page, with its headings and pictures."""
    page = await browser.new_page()
    asked: list[str] = []

    def note(request: Request) -> None:
        asked.append(request.url)

    page.on("request", note)
    for name in OPENED:
        await page.goto((site / name).as_uri())
        await expect(page.locator("h1").first).to_be_visible()
        broken = await page.evaluate("[...document.images].filter(each => !each.naturalWidth).map(each => each.src)")
        assert broken == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    await page.close()
