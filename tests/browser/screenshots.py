"""Take the pictures of the docs from a running stack: `make screenshots`.

Real runs of the example `order`, against a shop in trouble.
"""

import asyncio
import contextlib
import json
import re
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

import uvicorn
from playwright.async_api import Browser, Page, ViewportSize, async_playwright, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from redrive import Redrive
from redrive.bulk import BulkCommand
from redrive.contracts import RunStatus
from redrive.dead_letters import LetterId, LetterSelection
from tests import debian
from tests.acceptance.live import Up, working_directory
from tests.browser.conftest import CHROMIUM, FLAGS, PACKAGE

IMAGES: Final = Path(__file__).parents[2] / "docs" / "images"
# What is ordered, and how often: some succeed, some recover, the others are three groups of dead letters.
ORDERS: Final = {"lamp": 25, "kettle": 3, "teapot": 18, "sofa": 4, "ghost": 6}
OPERATOR: Final = "ada"
# A picture is as high as its page, and at least this.
SIZE: Final[ViewportSize] = {"width": 1280, "height": 420}
WAIT: Final = 60_000


class Shop:
    """The service that the example `order` calls: its payment provider is down, and some goods cannot be sent."""

    def __init__(self) -> None:
        self.is_down = True
        self._items: dict[str, str] = {}
        self._calls: Counter[str] = Counter()

    async def answer(self, request: Request) -> JSONResponse:
        """Answer one request, by its path and by what the run ordered."""
        key = request.headers["idempotency-key"]
        run, given, path = key.partition(":")[0], await request.json(), request.url.path
        item = self._items.setdefault(run, str(given.get("item")))
        self._calls[key] += 1
        match path, item:
            case "/reserve", "ghost":
                return JSONResponse({"error": "there is no item called 'ghost'"}, 400)
            case "/charge", "teapot" if self.is_down:
                return JSONResponse({"error": "the payment provider is down for maintenance"}, 503)
            case "/charge", "kettle" if self._calls[key] == 1:
                return JSONResponse({"error": "the card terminal is restarting"}, 503)
            case "/ship", "sofa":
                return JSONResponse({"error": "a parcel weighs at most 30 kg, this one 41 kg"}, 422)
        if path == "/reserve":
            # A later attempt may order another item.
            self._items[run] = str(given["item"])
        return JSONResponse({"reservation_id": run, "price_cents": 1999, "charge_id": run, "tracking_id": run})


@contextlib.asynccontextmanager
async def serving(shop: Shop) -> AsyncIterator[str]:
    """Serve the shop on a free port and yield its address."""
    app = Starlette(routes=[Route("/{path}", shop.answer, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
    listening = socket.create_server(("127.0.0.1", 0))
    task = asyncio.create_task(server.serve(sockets=[listening]))
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    await task


async def main() -> None:
    """Take all pictures."""
    shop = Shop()
    async with serving(shop) as address, async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=debian.find(CHROMIUM, PACKAGE), args=FLAGS)
        services = json.dumps({"shop": {"base_url": address}})
        with working_directory() as directory:
            up = Up(directory, variables={"REDRIVE_SERVICES": services})
            # Its start and stop block, and the shop has to answer meanwhile.
            await asyncio.to_thread(up.__enter__)
            try:
                await _take(up, chromium, shop)
            finally:
                await asyncio.to_thread(up.__exit__)
        await chromium.close()


async def _take(up: Up, chromium: Browser, shop: Shop) -> None:
    async with await Redrive.connect(up.settings) as redrive:
        runs = await _order(redrive)
        page = await _signed_in(up, chromium)
        await _take_overview(page)
        await _take_groups(page)
        await _take_letter(page, LetterId(tenant="default", run_id=runs["ghost"], step="reserve"))
        shop.is_down = False
        await _take_bulk(page, redrive)


async def _order(redrive: Redrive) -> dict[str, str]:
    """Start all runs, wait until each has ended or is parked, and return one of each item."""
    runs = {
        (item, number): (await redrive.start("order", {"item": item, "quantity": number})).run_id
        for item, times in ORDERS.items()
        for number in range(1, times + 1)
    }
    for run_id in runs.values():
        await _until(partial(_is_at_rest, redrive, run_id))
    return {item: run_id for (item, number), run_id in runs.items() if number == 1}


async def _is_at_rest(redrive: Redrive, run_id: str) -> bool:
    view = await redrive.status(run_id)
    return view.status.closed or view.status is RunStatus.DLQ_PENDING


async def _until(ask: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT / 1000):
        while True:
            if await ask():
                return
            await asyncio.sleep(0.2)


async def _signed_in(up: Up, chromium: Browser) -> Page:
    link = re.search(r"http\S+/sign-in/link/\S+", up.text)
    if link is None:
        sys.exit(f"`redrive up` printed no link to sign in:\n{up.text}")
    base = link[0].partition("/sign-in")[0]
    context = await chromium.new_context(base_url=base, viewport=SIZE, color_scheme="light")
    context.set_default_timeout(WAIT)
    page = await context.new_page()
    await page.goto(link[0])
    return page


async def _take_overview(page: Page) -> None:
    await page.goto("/")
    await expect(page.get_by_text("The last hour")).to_be_visible(timeout=WAIT)
    await _picture(page, "overview")


async def _take_groups(page: Page) -> None:
    await page.goto("/dead-letters")
    await expect(page.get_by_text("in 3 groups")).to_be_visible(timeout=WAIT)
    await _picture(page, "groups")


async def _take_letter(page: Page, letter: LetterId) -> None:
    """Show an edit that is about to be sent, in the dark."""
    await page.emulate_media(color_scheme="dark")
    await page.goto(f"/dead-letters/{letter.workflow_id}")
    await page.get_by_text("Edit the input", exact=True).click()
    edit = page.get_by_label("Input as JSON")
    await edit.fill((await edit.input_value()).replace("ghost", "lamp"))
    await expect(page.get_by_text("Fits.")).to_be_visible(timeout=WAIT)
    await _picture(page, "letter")
    await page.emulate_media(color_scheme="light")


async def _take_bulk(page: Page, redrive: Redrive) -> None:
    """Show a bulk replay under way."""
    chosen = LetterSelection(step="charge")
    command = BulkCommand(tenant="default", verb="replay", selection=chosen, canary=5, rate=3)
    plan = await redrive.bulk.plan(command)
    bulk = await redrive.bulk.start(plan, requested_by=OPERATOR, reason="the payment provider is back")
    await page.goto(f"/bulk/{bulk.bulk_id}")

    async def half_done() -> bool:
        return (await redrive.bulk.get(bulk.bulk_id, tenant="default")).progress.applied >= ORDERS["teapot"] // 2

    await _until(half_done)
    await page.reload()
    await _picture(page, "bulk")


async def _picture(page: Page, name: str) -> None:
    await page.wait_for_load_state("networkidle")
    await page.screenshot(path=IMAGES / f"{name}.png", full_page=True)
    print(f"docs/images/{name}.png")


if __name__ == "__main__":
    asyncio.run(main())
