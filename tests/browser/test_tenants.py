"""An owner chooses a tenant: it stays while they go from page to page, and selections say whose they are."""

import re

from playwright.async_api import expect

from redrive.access import Role
from tests.browser.pages import PATIENCE, Pages, case_of, serious_violations
from tests.conftest import Running
from tests.integration.store.letters import new_tenant

expect.set_options(timeout=PATIENCE)


async def test_the_chosen_tenant_stays(running: Running, pages: Pages) -> None:
    """Chosen once, every list is of that tenant; all tenants again, and the lists are of all."""
    await case_of(running, pages).park("first")
    page = await pages.signed_in(Role.OWNER)
    picker = page.get_by_label("Tenant", exact=True)
    await expect(picker.locator("option", has_text=pages.tenant)).to_have_count(1)
    await picker.select_option(pages.tenant)
    await expect(page).to_have_url(re.compile(f"tenant={pages.tenant}"))
    for place in ("Dead letters", "Runs", "Audit", "Overview"):
        await page.get_by_role("navigation", name="Pages").get_by_role("link", name=place).click()
        await expect(page).to_have_url(re.compile(f"tenant={pages.tenant}"))
        await expect(picker).to_have_value(pages.tenant)
    await expect(page.locator(".groups > li")).to_contain_text(pages.tenant)
    assert await serious_violations(page) == []
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name="Dead letters").click()
    await page.get_by_role("link", name="Look at one").click()
    await expect(page.locator("h1")).to_have_text(re.compile("first"))
    await expect(picker).to_have_value(pages.tenant)
    await picker.select_option("all tenants")
    await expect(page).to_have_url(re.compile("/dead-letters$"))
    await page.goto("/runs")
    await expect(page).to_have_url(re.compile("/runs$"))


async def test_a_selection_of_all_tenants_is_of_one(running: Running, pages: Pages) -> None:
    """Rows of one tenant go to its plan; of two, the bar says why the button is off."""
    mine, other = case_of(running, pages), case_of(running, pages)
    other.tenant = new_tenant()
    mine.service.error = other.service.error = f"no such {mine.name}"
    await mine.park("first")
    await other.park("first")
    page = await pages.signed_in(Role.OWNER)
    await page.goto(f"/dead-letters?view=list&status=pending&text={mine.name}")
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(2)
    await rows.nth(0).get_by_role("checkbox").check()
    await rows.nth(1).get_by_role("checkbox").check()
    await expect(page.locator("[data-picked]")).to_have_text("2 selected, of 2 tenants: select those of one")
    button = page.locator("#picked").get_by_role("button")
    await expect(button).to_be_disabled()
    await rows.filter(has_text=other.tenant).get_by_role("checkbox").uncheck()
    await button.click()
    await expect(page).to_have_url(re.compile(f"tenant={mine.tenant}"))
    await expect(page.locator(".planned-count")).to_have_text("1 dead letter")
