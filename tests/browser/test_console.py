"""An operator's night, in a real browser on a real stack: groups, a cause, one replay, its outcome without a reload."""

import re

import pytest
from playwright.async_api import Page, expect

from redrive import RunStatus
from redrive.access import Right, Role
from redrive.categories import Category
from redrive.dead_letters import LetterStatus
from redrive.store.dead_letters.records import record_exhausted
from tests.browser.pages import PATIENCE, Pages, case_of, press, serious_violations
from tests.conftest import Running
from tests.integration.dead_letters.lab import Case
from tests.integration.store.letters import exhausted, new_letter

expect.set_options(timeout=PATIENCE)
EVIL = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'> **bold** [here](http://evil.example)"


async def park_three_kinds(running: Running, pages: Pages) -> dict[str, list[Case]]:
    """Park six runs: three at the first step, two at the second, one at the third."""
    parked: dict[str, list[Case]] = {}
    for step, many in (("first", 3), ("second", 2), ("third", 1)):
        for _ in range(many):
            case = case_of(running, pages)
            case.service.error = f"the {step} provider is down"
            parked.setdefault(step, []).append(await case.park(step))
    return parked


async def test_operator_reads_a_cause_and_replays(running: Running, pages: Pages) -> None:
    """From the overview to three groups, to one cause, to its replay; the outcome shows without a reload."""
    parked = await park_three_kinds(running, pages)
    page = await pages.signed_in()
    await expect(page.locator(".figures").first).to_contain_text("Parked")
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name="Dead letters").click()
    groups = page.locator(".groups > li")
    await expect(groups).to_have_count(3)
    await expect(page.locator(".groups .number")).to_have_text(["3", "2", "1"])

    second = groups.filter(has_text="the second provider is down")
    await second.get_by_role("link", name="Look at one").click()
    await expect(page.locator(".cause pre.error")).to_have_text("the second provider is down")
    await expect(page.locator(".plan .reused")).to_have_text(re.compile("first"))
    await expect(page.locator(".plan .again")).to_have_text([re.compile("second"), re.compile("third")])

    letter = page.url.rpartition("/")[2]
    case = next(case for case in parked["second"] if case.letter("second").workflow_id == letter)
    case.mend()
    replay = page.locator("form[data-planned]")
    await replay.get_by_label("Reason").fill("the provider is back")
    await replay.get_by_role("button", name="Replay").click()
    await expect(page.locator(".cause .status")).to_have_text("replayed")
    await expect(page.locator("#trail")).to_contain_text("the provider is back")
    await expect(page.locator("#commands")).to_contain_text("Nothing is left to do")
    await case.until(RunStatus.SUCCESS)
    await page.goto("/dead-letters")
    await expect(page.locator(".groups .number")).to_have_text(["3", "1", "1"])
    bulk = await replay_group(page, parked["first"])
    await look_at_every_page(page, f"/runs/{parked['third'][0].run_id}", bulk)


async def replay_group(page: Page, cases: list[Case]) -> str:
    """Replay all that look alike, and watch the bar fill. Return where it is watched."""
    for case in cases:
        case.mend()
    group = page.locator(".groups > li").filter(has_text="the first provider is down")
    await group.get_by_role("link", name="Replay all").click()
    await expect(page.locator(".planned-count")).to_have_text("3 dead letters")
    await page.get_by_label("Canary").fill("1")
    await page.get_by_label("Reason").fill("the provider is back")
    await page.get_by_role("button", name="Replay").click()
    await expect(page.locator(".title .status")).to_have_text("done")
    await expect(page.locator(".figures")).to_contain_text(re.compile(r"Applied\s*3"))
    await expect(page.locator(".items tbody tr")).to_have_count(3)
    for case in cases:
        await case.until(RunStatus.SUCCESS)
    return page.url


async def look_at_every_page(page: Page, run: str, bulk: str) -> None:
    """Every page is there, and axe finds nothing serious on it, in the light and in the dark."""
    problems = []
    lists = ("/", "/dead-letters", "/app/admin/dlq?view=list", "/bulk", "/runs", "/modules", "/audit", "/tokens")
    for address in (*lists, run, bulk, "/bulk/new"):
        answer = await page.goto(address)
        assert answer
        assert answer.status == 200, address
        await expect(page.locator("h1")).to_be_visible()
        await page.emulate_media(color_scheme="dark" if address == "/dead-letters" else "light")
        problems += await serious_violations(page)
    assert problems == []


async def test_operator_stops_a_group_that_fails_again(running: Running, pages: Pages) -> None:
    """The page shows that the replays fail; a stop skips the rest, and each item is accounted for."""
    for _ in range(4):
        await case_of(running, pages).park("first")
    page = await pages.signed_in()
    await page.goto("/dead-letters")
    await page.get_by_role("link", name="Replay all").click()
    await expect(page.locator(".planned-count")).to_have_text("4 dead letters")
    for field, value in {"Canary": "0", "Stop above % failed": "100", "Per second": "0.1"}.items():
        await page.get_by_label(field).fill(value)
    await page.get_by_label("Reason").fill("is the provider back?")
    await page.get_by_role("button", name="Replay").click()
    await expect(page.locator(".figures")).to_contain_text(re.compile(r"Failed\s*1"))

    await expect(page.locator(".figures")).to_contain_text(re.compile(r"Applied per minute\s*0\s*Time left\s*about"))
    await page.locator("form[data-api$='/stop']").get_by_role("button", name="Stop").click()
    await expect(page.locator(".title .status")).to_have_text("stopped")
    await expect(page.locator(".figures")).to_contain_text(re.compile(r"Applied\s*0\s*Failed\s*1\s*Skipped\s*3"))
    assert await serious_violations(page) == []
    await page.get_by_role("link", name="Continue with the rest").click()
    await expect(page.locator(".planned-count")).to_have_text("3 dead letters")
    await expect(page.locator("#main")).to_contain_text("the service is broken")
    await page.goto("/audit")
    await expect(page.locator("#main")).to_contain_text("no reason given")


async def test_edit_is_checked_while_it_is_typed(running: Running, pages: Pages) -> None:
    """What does not fit is said at once, and refused if it is sent; then the mended edit goes through, alone."""
    case = await case_of(running, pages).park("second", note="password=hunter2")
    page = await pages.signed_in()
    await page.goto(f"/app/admin/dlq/{case.letter('second').workflow_id}")
    await expect(page.locator("#main pre.json mark")).to_have_text("[redacted]")
    await page.get_by_text("Edit the input").click()
    draft = page.get_by_label("Input as JSON")
    text = await draft.input_value()
    await draft.fill(text.replace('"n": 1', '"n": "many"'))
    await expect(page.locator(".check")).to_contain_text("is not of type")
    replay = page.locator("form[data-planned]")
    await replay.get_by_label("Reason").fill("a typo")
    await replay.get_by_role("button", name="Replay").click()
    await expect(replay.get_by_role("alert")).to_contain_text("n: ")
    await draft.fill(text.replace('"n": 1', '"n": 41'))
    await expect(page.locator(".check .good")).to_have_text(re.compile("Changes n$"))
    assert await serious_violations(page) == []
    case.mend()
    await replay.get_by_role("button", name="Replay").click()
    await case.until_letter("second", LetterStatus.REPLAYED)
    given = [call.given for call in case.service.calls if call.step == "second"][-1]
    assert (given.n, given.note) == (41, "password=hunter2")


async def test_error_text_is_shown_as_text(pages: Pages) -> None:
    """Markup and Markdown of an error do nothing, in the groups, in the list and on the letter's page."""
    letter = new_letter(pages.tenant)
    await record_exhausted(pages.pool, exhausted(letter, message=EVIL, payload={EVIL: EVIL}))
    page = await pages.signed_in()
    for address in ("/", "/dead-letters", "/dead-letters?view=list", f"/dead-letters/{letter.workflow_id}"):
        await page.goto(address)
        await expect(page.locator("#main")).to_contain_text("<script>window.hacked = 1</script>")
        await expect(page.locator("#main")).to_contain_text("**bold** [here](http://evil.example)")
        assert await page.evaluate("window.hacked") is None
        assert await page.locator("#main img, a[href*='evil.example']").count() == 0


@pytest.mark.parametrize(
    ("role", "sees"),
    [
        (Role.VIEWER, {"payload": False, "orders": False, "tokens": False}),
        (Role.STAFF, {"payload": True, "orders": False, "tokens": False}),
        (Role.ADMIN, {"payload": True, "orders": True, "tokens": True}),
        (Role.OWNER, {"payload": True, "orders": True, "tokens": True}),
    ],
)
async def test_each_role_sees_what_it_may(pages: Pages, role: Role, sees: dict[str, bool]) -> None:
    """Actions and payloads are on the page of those who have the right to them."""
    letter = new_letter(pages.tenant)
    dead = exhausted(letter, category=Category.TIMEOUT, payload={"secret_word": "swordfish"})
    await record_exhausted(pages.pool, dead)
    rights = {"rights": frozenset({Right.READ, Right.PAYLOADS})} if role is Role.STAFF else {}
    page = await pages.signed_in(role, token=rights, color_scheme="dark")
    await page.goto(f"/dead-letters/{letter.workflow_id}")
    shown = {
        "payload": "swordfish" in await page.locator("#main").inner_text(),
        "orders": await page.get_by_role("button", name="Replay").count() == 1,
        "tokens": await page.get_by_role("link", name="Tokens").count() == 1,
    }
    assert shown == sees
    assert await serious_violations(page) == []
    answer = await page.goto("/tokens")
    assert answer
    assert answer.status == (200 if sees["tokens"] else 403)


async def test_strangers_sign_in_and_come_back(pages: Pages) -> None:
    """Somebody who is not signed in is led to the sign-in, and from there to where they wanted to go."""
    foreign = new_letter("somebody-else")
    await record_exhausted(pages.pool, exhausted(foreign))
    for _ in range(2):
        await record_exhausted(pages.pool, exhausted(new_letter(pages.tenant)))
    page = await pages.visitor()
    await page.goto("/dead-letters?view=list&status=pending")
    assert await serious_violations(page) == []
    await page.get_by_label("Token").fill("rdt_wrong")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("alert")).to_contain_text("no such token")
    await page.goto("/dead-letters?view=list&status=pending")
    await page.get_by_label("Token").fill(await pages.token(Role.ADMIN))
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.locator("tbody tr")).to_have_count(2)
    await keyboard_works(page)
    answer = await page.goto(f"/dead-letters/{foreign.workflow_id}")
    assert answer
    assert answer.status == 404
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_label("Token")).to_be_visible()


async def keyboard_works(page: Page) -> None:
    """The keys: j k x Enter / ?"""
    rows = page.locator("tbody tr")
    await press(page, "j", "j", "k", "x")
    await expect(rows.first).to_have_class(re.compile("current"))
    await expect(rows.first.get_by_role("checkbox")).to_be_checked()
    await page.keyboard.press("/")
    await expect(page.get_by_label("Search", exact=True)).to_be_focused()
    await page.keyboard.press("Escape")
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_be_hidden()
    await page.keyboard.press("Enter")
    await expect(page.locator(".cause")).to_be_visible()
