"""Two admins in two browsers: one plans a bulk operation, the other approves it, the first starts it."""

import re
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Page, expect

from redrive import Registry, RunStatus
from tests.browser.pages import PATIENCE, Pages, case_of, serious_violations
from tests.conftest import Running, WorkerFactory
from tests.integration.dead_letters.lab import Case, register

expect.set_options(timeout=PATIENCE)


@pytest.fixture
async def running(worker: WorkerFactory, registry: Registry) -> AsyncIterator[Running]:
    """A worker that wants a second approver."""
    register(registry)
    async with worker(approvals=True) as running:
        yield running


async def test_two_admins_replay_a_group(running: Running, pages: Pages) -> None:
    """Planned by one, who waits; approved by the other, from the list; started by the first, whose page went live."""
    cases = [await case_of(running, pages).park("first") for _ in range(2)]
    for case in cases:
        case.mend()
    ann = await pages.signed_in(token={"name": "ann"})
    ben = await pages.signed_in(token={"name": "ben"})
    sent = await ask(ann)
    await expect(ann.locator("#decision")).to_contain_text("Send them the address of this page")
    await expect(ann.get_by_role("button", name="Approve")).to_have_count(0)
    await approve(ben, sent)
    await expect(ann.locator("#approval")).to_contain_text(re.compile("Approved by ben .*two runs, one cause", re.S))
    problems = await serious_violations(ann) + await serious_violations(ben)
    await start(ann, cases)
    await ben.goto(sent)
    await expect(ben.locator("#decision").get_by_role("link", name="Watch it")).to_be_visible()
    await ben.goto("/bulk")
    await expect(ben.locator(".waiting")).to_have_count(0)
    assert problems + await serious_violations(ben) == []


async def ask(page: Page) -> str:
    """Plan the group and press the button. Return the address at which the plan waits."""
    await page.goto("/dead-letters")
    await page.locator(".groups > li").get_by_role("link", name="Replay all").click()
    await expect(page.locator(".planned")).to_contain_text("waits for another admin")
    await page.get_by_label("Reason").fill("the provider is back")
    await page.get_by_role("button", name="Ask for approval").click()
    await expect(page.locator("h1")).to_have_text("Replay 2 dead letters")
    await expect(page.locator(".title .status")).to_have_text("waits")
    return page.url


async def approve(page: Page, sent: str) -> None:
    """Find the plan in the list, read it, and say yes."""
    await page.goto("/bulk")
    waiting = page.locator(".waiting tbody tr")
    await expect(waiting).to_contain_text("the provider is back")
    assert await serious_violations(page) == []
    await waiting.get_by_role("link").click()
    await expect(page).to_have_url(sent)
    await expect(page.locator("#approval")).to_contain_text(re.compile("ann .*the provider is back", re.S))
    await expect(page.locator(".planned-groups")).to_contain_text(
        re.compile("first runs again.*then second, third", re.S)
    )
    assert await serious_violations(page) == []
    await page.get_by_role("link", name="Look at the dead letters").click()
    await expect(page.locator("tbody tr")).to_have_count(2)
    await page.goto(sent)
    await page.get_by_label("Why you approve").fill("two runs, one cause")
    await page.get_by_role("button", name="Approve").click()
    await expect(page.locator(".title .status")).to_have_text("approved")


async def start(page: Page, cases: list[Case]) -> None:
    """Start what was approved, and watch it to its end."""
    await expect(page.get_by_label("Reason")).to_have_value("the provider is back")
    await page.get_by_role("button", name="Replay").click()
    await expect(page).to_have_url(re.compile("/bulk/bulk-"))
    await expect(page.locator(".title .status")).to_have_text("done")
    await expect(page.locator(".figures")).to_contain_text(re.compile(r"Applied\s*2"))
    for case in cases:
        await case.until(RunStatus.SUCCESS)


async def test_an_approved_edit_is_started_by_one_button(running: Running, pages: Pages) -> None:
    """Asked for by one admin, approved by the other, who starts it: the edit goes with it, and nothing is retyped."""
    case = await case_of(running, pages).park("second")
    case.mend()
    letter = f"/dead-letters/{case.letter('second').workflow_id}"
    ann = await pages.signed_in(token={"name": "ann"})
    ben = await pages.signed_in(token={"name": "ben"})
    await ann.goto(letter)
    await ann.get_by_text("Edit the input").click()
    text = await ann.get_by_label("Input as JSON").input_value()
    await ann.get_by_label("Input as JSON").fill(text.replace('"n": 1', '"n": 41'))
    await expect(ann.locator(".check")).to_contain_text("Changes n")
    replay = ann.locator("form[data-planned]")
    await replay.get_by_label("Reason").fill("a typo")
    await replay.get_by_role("button", name="Replay").click()
    await expect(ann.locator(".approval")).to_contain_text("another admin approves it here")
    await expect(ann.get_by_role("button", name="Replay")).to_be_hidden()

    await ben.goto("/bulk")
    await ben.locator(".waiting").get_by_role("link", name="replay with an edit").click()
    await ben.get_by_label("Why you approve").fill("looked at it")
    await ben.get_by_role("button", name="Approve").click()
    assert await serious_violations(ben) == []
    await ben.get_by_role("button", name="Replay with this edit").click()
    await expect(ann.locator(".cause .status")).to_have_text("replayed")
    await case.until(RunStatus.SUCCESS)
    assert case.service.calls[-2].given.n == 41
