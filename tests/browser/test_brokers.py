"""What brokers left behind, in a real browser: messages of a real RabbitMQ, events of a real Redis, on a real stack."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Page, expect

from redrive import Pipeline, Registry
from redrive.access import Right, Role
from redrive.store.messages.dead import MessageStatus
from redrive.worker import running_worker
from tests.browser.pages import PATIENCE, Pages, press, serious_violations
from tests.conftest import Running, WorkerFactory, eventually
from tests.integration.bridges.conftest import Names, names, rabbitmq, rabbitmq_programs
from tests.integration.bridges.rabbit import RabbitServer
from tests.integration.bridges.test_retry_scheduler import AppState, app_state
from tests.integration.console.broker_rows import bury, event_body, give_up, store_event
from tests.integration.events import projectors
from tests.integration.events.conftest import valkey
from tests.integration.events.event_lab import EventLab
from tests.integration.events.projectors import WRONG, Tables
from tests.integration.events.valkey import Valkey

__all__ = ["names", "rabbitmq", "rabbitmq_programs", "valkey"]

expect.set_options(timeout=PATIENCE)
TYPE = "interview.completed"
EVIL = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'> **bold** [here](http://evil.example)"


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture
async def running(worker: WorkerFactory, registry: Registry, tables: Tables) -> AsyncIterator[Running]:
    """A worker with two projectors."""
    projectors.register(registry, tables)
    async with worker() as running:
        yield running


@pytest.fixture
async def scheduler(running: Running, rabbitmq: RabbitServer, names: Names, pages: Pages) -> AsyncIterator[AppState]:
    """The retry scheduler, for the tenant of the pages."""
    pages.tenant = names.tenant
    async with app_state(running.settings, rabbitmq, names) as found:
        yield found


async def command(page: Page, verb: str, reason: str) -> None:
    """Give a command on the page that is open."""
    if verb == "Discard":
        await page.locator("summary", has_text="Discard").click()
    form = page.locator(f"form[data-api*='/{verb.lower()}']")
    await form.get_by_label("Reason").fill(reason)
    await form.get_by_role("button", name=verb).click()


async def go_to(page: Page, place: str) -> None:
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name=place).click()


async def test_dead_messages_are_found_read_replayed_and_ignored(scheduler: AppState, pages: Pages) -> None:
    """Two messages are given up: one is sent again and comes back to its queue, one is ignored, without a reload."""
    await scheduler.send(1, 2, retry_count=3)
    page = await pages.signed_in()
    await go_to(page, "Messages")
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(2)
    assert await serious_violations(page) == []
    await press(page, "j", "Enter")
    await expect(page.locator(".cause pre.error")).to_have_text("the service did not answer")
    sent = await page.locator("pre.json").inner_text()
    assert await serious_violations(page) == []
    await command(page, "Replay", "the service is back")
    (message,) = await scheduler.arrived(1)
    assert message.body.decode() == sent
    await expect(page.locator(".cause .status")).to_have_text("replayed")
    await expect(page.locator("#trail")).to_contain_text("the service is back")
    await expect(page.locator("#commands")).to_contain_text("Nothing is left to do")

    await go_to(page, "Messages")
    await expect(rows).to_have_count(1)
    await press(page, "j", "Enter")
    await command(page, "Discard", "sent by hand")
    await expect(page.locator(".cause .status")).to_have_text("discarded")
    assert (await scheduler.dead(MessageStatus.DISCARDED)).replay_count == 0
    await page.goto("/audit")
    await page.locator("tr", has_text="sent by hand").get_by_role("link").click()
    await expect(page.locator(".cause .status")).to_have_text("discarded")


@pytest.fixture
async def lab(running: Running, valkey: Valkey, registry: Registry, pages: Pages) -> AsyncIterator[EventLab]:
    """A stream and a bridge on it, for the tenant of the pages."""
    lab = EventLab(valkey, running.settings, running.temporal, registry)
    pages.tenant = lab.tenant
    async with lab.database, lab.bridge():
        yield lab


async def test_dead_events_are_found_read_replayed_and_ignored(lab: EventLab, pages: Pages, registry: Registry) -> None:
    """A message without a pipeline is replayed in vain, then with its pipeline; one that is no JSON is ignored."""
    await lab.emit("interview:ada", type_="interview.moved", user="ada", score=7)
    await lab.valkey.client.xadd(lab.stream, {"event": "{ password=hunter2", "tenant": lab.tenant})
    page = await pages.signed_in()
    await go_to(page, "Events")
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(2)
    assert await serious_violations(page) == []
    await rows.filter(has_text="interview.moved").get_by_role("link").click()
    await expect(page.locator(".cause pre.error")).to_contain_text("interview-moved")
    await expect(page.locator("pre.json")).to_contain_text('"score": 7')
    assert await serious_violations(page) == []
    await command(page, "Replay", "is it there?")
    await expect(page.locator("#toasts .bad")).to_contain_text("still pending")
    await expect(page.locator("#trail")).to_contain_text("is it there?")
    Pipeline("interview-moved", *registry.pipelines["interview-completed"].modules, registry=registry)
    await expect(page.locator(".cause .advice")).to_contain_text("after 2 attempts")
    async with running_worker(lab.settings, registry):
        await command(page, "Replay", "it is deployed now")
        await expect(page.locator(".cause .status")).to_have_text("replayed")
    await page.locator(".notice").get_by_role("link", name="event").click()
    await expect(page.locator(".steps .status")).to_have_text(["succeeded", "succeeded"])

    await go_to(page, "Events")
    await rows.filter(has_text="not valid JSON").get_by_role("link").click()
    await expect(page.locator("pre.json mark")).to_have_text("[redacted]")
    await command(page, "Discard", "a producer's test")
    await expect(page.locator(".cause .status")).to_have_text("discarded")


async def test_owner_names_the_tenant_of_what_is_in_quarantine(lab: EventLab, pages: Pages) -> None:
    """A message of nobody is in a view that owners have; the page asks whose it is, and then it is theirs."""
    await lab.put("of nobody")
    page = await pages.signed_in(Role.OWNER)
    await page.goto(f"/events?view=quarantine&stream={lab.stream}")
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(1)
    assert await serious_violations(page) == []
    await rows.get_by_role("link").click()
    await expect(page.locator(".cause .notice")).to_contain_text("Only owners see it")
    assert await serious_violations(page) == []
    await page.get_by_label("Tenant whose it is").fill(lab.tenant)
    await command(page, "Replay", "their producer wrote it")
    await expect(page.locator("#toasts .bad")).to_contain_text("still pending")
    await expect(page.locator("#trail")).to_contain_text("their producer wrote it")
    (dead,) = await lab.dead()
    assert dead.tenant == lab.tenant


async def test_projectors_are_replayed_from_the_page_of_their_event(
    lab: EventLab, pages: Pages, tables: Tables
) -> None:
    """A failed projector leads to its dead letter and is replayed in its run; then one is chosen and runs alone."""
    tables.broken["service-session"] = WRONG
    await lab.emit("interview:ada", type_=TYPE, user="ada", score=7)
    page = await pages.signed_in()
    await page.goto("/events?view=failed")
    await eventually(lambda: _reload_until(page, 1))
    assert await serious_violations(page) == []
    await page.locator("tbody tr").get_by_role("link").first.click()
    await expect(page.locator(".steps .status")).to_have_text(["succeeded", "failed"])
    assert await serious_violations(page) == []
    await page.get_by_role("link", name="Dead letter", exact=True).click()
    await expect(page.locator(".cause pre.error")).to_have_text(str(WRONG))
    await page.go_back()
    tables.broken.clear()
    await command(page, "Replay", "the token is mended")
    await expect(page.locator(".steps .status")).to_have_text(["succeeded", "succeeded"])
    await page.get_by_role("checkbox", name="qscore").check()
    await command(page, "Replay", "a new formula")
    await expect(page.locator("#trail")).to_contain_text("a new formula")
    await eventually(lambda: _called(tables, {"qscore": 2, "service-session": 2}))


async def _reload_until(page: Page, count: int) -> bool:
    await page.reload()
    return await page.locator("tbody tr").count() == count


async def _called(tables: Tables, wanted: dict[str, int]) -> bool:
    return dict(tables.calls) == wanted


@pytest.mark.parametrize(
    ("role", "payload", "orders"),
    [(Role.VIEWER, False, False), (Role.STAFF, True, False), (Role.ADMIN, True, True), (Role.OWNER, True, True)],
)
async def test_each_role_sees_what_it_may(pages: Pages, role: Role, payload: bool, orders: bool) -> None:
    """Orders and contents are on the pages of those who have the right to them, in the dark and on a phone."""
    name = await give_up(pages.pool, pages.tenant, original_payload=b"swordfish", original_queue="mail")
    dead_id = await bury(pages.pool, pages.tenant, b"swordfish")
    event = await store_event(pages.pool, pages.tenant, word="swordfish")
    rights = {"rights": frozenset({Right.READ, Right.PAYLOADS})} if role is Role.STAFF else {}
    page = await pages.signed_in(role, token=rights, color_scheme="dark")
    await page.set_viewport_size({"width": 360, "height": 740})
    for address in (f"/messages/{name}", f"/events/dead/{dead_id}", f"/events/{event.id}"):
        await page.goto(address)
        assert ("swordfish" in await page.locator("#main").inner_text()) is payload
        assert (await page.get_by_role("button", name="Replay").count() == 1) is orders
        assert await serious_violations(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth") == 360


async def test_text_of_brokers_is_shown_as_text(pages: Pages) -> None:
    """Markup in an error, a queue's name, a stream's or a payload does nothing."""
    name = await give_up(
        pages.pool, pages.tenant, error_reason=EVIL, original_queue=EVIL, original_payload=EVIL.encode()
    )
    dead_id = await bury(pages.pool, pages.tenant, event_body(EVIL, type=EVIL), stream=EVIL)
    event = await store_event(pages.pool, pages.tenant, word=EVIL)
    page = await pages.signed_in()
    lists = ("/messages", "/events", "/audit")
    for address in (*lists, f"/messages/{name}", f"/events/dead/{dead_id}", f"/events/{event.id}"):
        await page.goto(address)
        assert await page.evaluate("window.hacked") is None
        assert await page.locator("#main img, a[href^='http']").count() == 0
    await expect(page.locator("pre.json")).to_contain_text("<script>window.hacked = 1</script>")
