"""Pages that stay open while others work: what they show and offer is of now, not of when they were loaded."""

import re

from playwright.async_api import Route, expect

from redrive import RunStatus
from redrive.dead_letters import Verb
from tests.browser.pages import PATIENCE, Pages, case_of, serious_violations
from tests.conftest import Running

expect.set_options(timeout=PATIENCE)


async def test_rows_that_arrive_can_be_selected(running: Running, pages: Pages) -> None:
    """A list that was empty when it was opened gets its bar of commands with its first row."""
    page = await pages.signed_in()
    await page.goto("/dead-letters?view=list&status=pending")
    await expect(page.locator(".empty")).to_contain_text("Nothing here")
    bar = page.locator("#picked")
    await expect(bar).to_be_hidden()
    await case_of(running, pages).park("first")
    await page.locator("tbody tr").get_by_role("checkbox").check()
    await expect(bar).to_contain_text("1 selected:")
    assert await serious_violations(page) == []
    await bar.get_by_role("button").click()
    await expect(page.locator(".planned-count")).to_have_text("1 dead letter")


async def test_a_dead_letter_says_what_was_done_while_it_is_open(running: Running, pages: Pages) -> None:
    """Somebody else replays it: the page says who did what and why, without a reload."""
    case = await case_of(running, pages).park("second")
    page = await pages.signed_in()
    await page.goto(f"/dead-letters/{case.letter('second').workflow_id}")
    await expect(page.locator(".plan .again").first).to_be_visible()
    await expect(page.locator("#done")).to_be_hidden()
    case.mend()
    await case.redrive.dead_letters.replay(case.letter("second"), requested_by="ben", reason="the bank is back")
    await expect(page.locator("#done")).to_contain_text(
        re.compile("Replayed by ben.*the bank is back.*succeeded", re.S)
    )
    await expect(page.locator("#done .contents")).to_contain_text("Output")


async def test_a_run_is_followed_to_its_end(running: Running, pages: Pages) -> None:
    """The commands of its page are those that it takes now: continue once it waits, none once it has ended."""
    case = await case_of(running, pages).park("first")
    page = await pages.signed_in()
    await page.goto(f"/runs/{case.run_id}")
    await expect(page.get_by_text("Cancel", exact=True)).to_be_visible()
    await expect(page.get_by_role("button", name="Continue")).to_have_count(0)
    case.mend()
    await case.command(Verb.REPLAY, "first", mode="STEP_ONLY")
    await page.locator("form[data-api$='/continue']").get_by_label("Reason").fill("the first one went well")
    await page.get_by_role("button", name="Continue").click()
    await case.until(RunStatus.SUCCESS)
    await expect(page.locator(".facts")).to_contain_text("Ended")
    await expect(page.get_by_role("button", name="Continue")).to_have_count(0)
    await expect(page.get_by_text("Cancel", exact=True)).to_have_count(0)
    assert await serious_violations(page) == []


async def test_the_list_of_runs_follows_them(running: Running, pages: Pages) -> None:
    """Runs that start and end while the list is open appear in it, although success is no line of the audit log."""
    page = await pages.signed_in()
    await page.goto("/runs")
    await expect(page.locator(".empty")).to_contain_text("No runs")
    for count in (1, 2):
        await case_of(running, pages).start()
        await expect(page.locator("tbody tr .status")).to_have_text(["success"] * count)


async def test_live_updates_are_asked_for_again_after_a_refusal(running: Running, pages: Pages) -> None:
    """A console that is starting, or whose database is down, refuses the stream; browsers do not try that again."""
    asked = 0

    async def refuse_first(route: Route) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            await route.fulfill(status=503, body="{}")
        else:
            await route.continue_()

    page = await pages.signed_in()
    await page.route("**/api/v1/events*", refuse_first)
    await page.goto("/dead-letters")
    await expect(page.locator("#live")).to_have_attribute("data-state", "on")
    await case_of(running, pages).park("first")
    await expect(page.locator(".groups > li")).to_have_count(1)
