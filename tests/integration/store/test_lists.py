"""Lists of dead letters and runs: each filter, paging to the end, groups and figures."""

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from redrive.categories import Category
from redrive.contracts import RunStatus, RunSummary
from redrive.dead_letters import LetterFilter, LetterId, LetterStatus
from redrive.errors import InvalidInput, LetterNotFound
from redrive.postgres.tenancy import Pool
from redrive.store import runs
from redrive.store.dead_letters import lists as dead_letter_lists
from redrive.store.dead_letters import records as dead_letters
from redrive.store.dead_letters.figures import groups, stats
from redrive.store.dead_letters.lists import find_letter, get_letter, list_letters, open_letters
from redrive.store.dead_letters.models import LetterRow
from tests.integration.store.letters import CYCLE, START, discard, exhausted, new_letter, new_tenant, replay, yes

CATEGORIES = [Category.TIMEOUT, Category.VALIDATION]
STEPS = ["first", "second"]


async def _fill(pool: Pool, tenant: str, count: int) -> list[LetterId]:
    """Make letters that differ in everything; several share a time."""
    letters = []
    for number in range(count):
        letter = new_letter(tenant, STEPS[number % 2])
        message = exhausted(
            letter,
            message=f"order {number} is {'late' if number % 4 else 'lost'}: 100%_sure\\",
            category=CATEGORIES[number // 2 % 2],
            pipeline=["orders", "returns"][number // 4 % 2],
            at=START + timedelta(minutes=number // 3),
            key=f"key-{tenant}-{number}",
            correlation_id=f"trace-{tenant}-{number}",
        )
        await dead_letters.record_exhausted(pool, message)
        if number % 5 == 0:
            await dead_letters.put_accepted(pool, letter, replay(), yes(replay()))
        if number % 7 == 0:
            await dead_letters.put_accepted(pool, letter, discard("d"), yes(discard("d")))
        letters.append(letter)
    return letters


@pytest.fixture(scope="module")
async def filled(pool: Pool) -> tuple[str, list[LetterId]]:
    """A tenant with sixty dead letters."""
    tenant = new_tenant()
    return tenant, await _fill(pool, tenant, 60)


async def _pages(pool: Pool, chosen: LetterFilter, limit: int) -> AsyncIterator[list[LetterRow]]:
    cursor = None
    while True:
        page = await list_letters(pool, chosen, limit, cursor)
        yield page.rows
        cursor = page.cursor
        if cursor is None:
            return


async def _all(pool: Pool, chosen: LetterFilter, limit: int = 7) -> list[LetterRow]:
    return [row async for rows in _pages(pool, chosen, limit) for row in rows]


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"status": LetterStatus.PENDING},
        {"status": LetterStatus.REPLAYING},
        {"status": LetterStatus.DISCARDED},
        {"status": LetterStatus.RESOLVED},
        {"pipeline": "orders"},
        {"module": "first"},
        {"step": "second"},
        {"category": Category.VALIDATION},
        {"since": START + timedelta(minutes=5)},
        {"until": START + timedelta(minutes=5)},
        {"status": LetterStatus.PENDING, "pipeline": "returns", "category": Category.TIMEOUT, "step": "first"},
        {"pipeline": "nothing"},
        {"pipeline": "\0"},
        {"fingerprint": "' OR true --"},
    ],
)
async def test_filter_gives_all_that_fit_and_no_other(
    pool: Pool, filled: tuple[str, list[LetterId]], filters: dict[str, Any]
) -> None:
    """Page by page, newest first, each row once."""
    tenant, letters = filled

    def fits(row: LetterRow) -> bool:
        since, until = filters.get("since"), filters.get("until")
        if (since and row.last_failed_at < since) or (until and row.last_failed_at >= until):
            return False
        return all(getattr(row, name) == value for name, value in filters.items() if name not in {"since", "until"})

    everything = await _all(pool, LetterFilter(tenant=tenant), 1000)
    assert {row.id for row in everything} == {letter.workflow_id for letter in letters}
    assert everything == sorted(everything, key=lambda row: (row.last_failed_at, row.id), reverse=True)
    assert await _all(pool, LetterFilter(tenant=tenant, **filters)) == [row for row in everything if fits(row)]


@pytest.mark.parametrize("limit", [1, 2, 59, 60, 61])
async def test_pages_of_any_size_make_the_same_list(pool: Pool, filled: tuple[str, list[LetterId]], limit: int) -> None:
    """The last page has no cursor, also when it is full."""
    pages = [rows async for rows in _pages(pool, LetterFilter(tenant=filled[0]), limit)]
    assert len(pages) == -(-60 // limit)
    assert len({row.id for rows in pages for row in rows}) == 60


@pytest.mark.parametrize("field", ["run_id", "correlation_id", "idempotency_key", "id"])
async def test_search_by_an_id_finds_its_letter(pool: Pool, filled: tuple[str, list[LetterId]], field: str) -> None:
    """An id is looked up whole first: that of number 1 is not also that of 10 to 19."""
    tenant, letters = filled
    record = await get_letter(pool, tenant, letters[1].workflow_id)
    assert record is not None
    found = await _all(pool, LetterFilter(tenant=tenant, text=getattr(record, field)))
    assert [row.letter for row in found] == [letters[1]]
    everywhere = await _all(pool, LetterFilter(text=getattr(record, field)))
    assert [row.letter for row in everywhere] == [letters[1]]


@pytest.mark.parametrize(
    ("text", "count"), [("LOST", 15), ("100%_sure\\", 60), ("100__sure", 0), ("%", 60), ("trace-", 60), ("\0", 0)]
)
async def test_search_by_a_part_finds_all(
    pool: Pool, filled: tuple[str, list[LetterId]], text: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large and small letters are alike, wildcards are letters, and a page that looked far enough leads on."""
    chosen = LetterFilter(tenant=filled[0], text=text)
    assert len(await _all(pool, chosen)) == count
    monkeypatch.setattr(dead_letter_lists, "SEARCH_DEPTH", 10)
    found = await _all(pool, chosen, 4)
    assert len({row.id for row in found}) == len(found) == count


async def test_list_of_all_tenants_is_the_newest_of_each(pool: Pool) -> None:
    """Without a tenant the lists of all are one list."""
    tenants = [new_tenant() for _ in range(3)]
    step = f"step-{tenants[0]}"
    letters = [new_letter(tenants[number % 3], step) for number in range(12)]
    for number, letter in enumerate(letters):
        await dead_letters.record_exhausted(pool, exhausted(letter, at=START + timedelta(minutes=number)))
    found = await _all(pool, LetterFilter(step=step), 5)
    assert [row.letter for row in found] == letters[::-1]


async def test_paging_is_complete_while_rows_change(pool: Pool, tenant: str) -> None:
    """Rows that stay in their place are listed once, whatever is written meanwhile; none is listed twice."""
    chance = random.Random(7)
    letters = await _fill(pool, tenant, 40)
    moving = letters[::4]
    staying = {letter.workflow_id for letter in letters} - {letter.workflow_id for letter in moving}
    later = START + timedelta(days=1)
    seen: list[str] = []
    async for rows in _pages(pool, LetterFilter(tenant=tenant), 3):
        seen += [row.id for row in rows]
        mover = chance.choice(moving)
        await asyncio.gather(
            dead_letters.record_exhausted(pool, exhausted(new_letter(tenant), at=later)),
            dead_letters.record_exhausted(pool, exhausted(mover, len(seen) + 1, at=later)),
            dead_letters.put_accepted(pool, letters[1], discard(f"x{len(seen)}"), yes(discard(f"x{len(seen)}"))),
        )
    assert len(seen) == len(set(seen))
    assert staying <= set(seen)


async def test_letter_of_another_tenant_is_not_found(pool: Pool, filled: tuple[str, list[LetterId]]) -> None:
    """It is as if it were not there; who sees all tenants finds it."""
    tenant, letters = filled
    identity = letters[0].workflow_id
    assert await get_letter(pool, new_tenant(), identity) is None
    assert await get_letter(pool, None, identity) == await get_letter(pool, tenant, identity) is not None


@pytest.mark.parametrize("tenant_name", ["", "*"])
async def test_reading_as_everybody_by_name_is_refused(pool: Pool, tenant_name: str) -> None:
    """All tenants are read by saying so, not by a tenant's name that somebody sent."""
    with pytest.raises(InvalidInput, match="not a tenant's name"):
        await list_letters(pool, LetterFilter(tenant=tenant_name))


async def test_open_letters_are_walked_through_by_id(pool: Pool, filled: tuple[str, list[LetterId]]) -> None:
    """Each one once, the closed ones never."""
    tenant, _ = filled
    walked: list[LetterRow] = []
    while rows := await open_letters(pool, tenant, walked[-1].id if walked else None, limit=7):
        walked += rows
    expected = [row for row in await _all(pool, LetterFilter(tenant=tenant)) if not row.status.closed]
    assert {row.id for row in walked} == {row.id for row in expected}
    assert len(walked) == len(expected)
    assert {row.id for row in expected} <= {row.id for row in await open_letters(pool, None, limit=1000)}


async def test_groups_put_together_what_looks_alike(pool: Pool, tenant: str) -> None:
    """The largest first, with the newest as a sample; what is closed does not count."""
    letters = [new_letter(tenant) for _ in range(6)]
    for number, letter in enumerate(letters):
        message = f"user {number} is unknown" if number else "no route"
        await dead_letters.record_exhausted(
            pool, exhausted(letter, message=message, at=START + timedelta(hours=number))
        )
    await dead_letters.put_accepted(pool, letters[2], discard(), yes(discard()))
    found = await groups(pool, LetterFilter(tenant=tenant))
    assert [(group.count, group.message, group.sample) for group in found] == [
        (4, "user 5 is unknown", letters[5].workflow_id),
        (1, "no route", letters[0].workflow_id),
    ]
    assert (found[0].first_failed_at, found[0].last_failed_at) == (
        START + timedelta(hours=1),
        START + timedelta(hours=5, seconds=2),
    )
    assert len(await _all(pool, LetterFilter(tenant=tenant, fingerprint=found[0].fingerprint))) == 5
    with pytest.raises(InvalidInput, match="by text"):
        await groups(pool, LetterFilter(tenant=tenant, text="x"))


async def test_stats_agree_with_the_lists(pool: Pool, filled: tuple[str, list[LetterId]]) -> None:
    """Counters, age, categories and steps are those of the letters."""
    tenant, _ = filled
    found, rows = await stats(pool, tenant), await _all(pool, LetterFilter(tenant=tenant))
    for status in LetterStatus:
        assert found.by_status[status] == sum(row.status is status for row in rows)
    waiting = [row for row in rows if not row.status.closed]
    assert found.open == found.looked_at == len(waiting) == sum(found.by_step.values())
    assert found.by_category == {
        each: sum(row.category is each for row in waiting) for each in dict.fromkeys(row.category for row in waiting)
    }
    assert sum(group.count for group in found.groups) == len(waiting)
    assert found.oldest_open is not None
    empty = await stats(pool, new_tenant())
    assert (empty.open, empty.oldest_open, empty.groups) == (0, None, [])
    assert (await stats(pool)).open >= found.open


async def _finish(pool: Pool, letter: LetterId, status: RunStatus, **changes: Any) -> None:
    facts: dict[str, Any] = {"pipeline": "orders", "correlation_id": None, "idempotency_key": None, "started_at": START}
    facts |= {"revision": 9 * CYCLE} | changes
    run = runs.FinishedRun(run_id=letter.run_id, tenant=letter.tenant, status=status, **facts)
    await runs.put_finished(pool, run)


async def _run(pool: Pool, letter: LetterId) -> RunSummary:
    page = await runs.list_runs(pool, runs.RunFilter(tenant=letter.tenant), 1000)
    [run] = [run for run in page.rows if run.run_id == letter.run_id]
    return run


async def test_finished_run_is_written_once(pool: Pool, tenant: str) -> None:
    """The same again keeps the time of the first."""
    letter = new_letter(tenant)
    await _finish(pool, letter, RunStatus.SUCCESS)
    first = await _run(pool, letter)
    await _finish(pool, letter, RunStatus.SUCCESS)
    assert await _run(pool, letter) == first
    assert (first.status, first.failed_step) == (RunStatus.SUCCESS, None)
    assert first.closed_at is not None


async def test_replayed_run_ends_as_a_success(pool: Pool, tenant: str) -> None:
    """What had failed is no more said of it."""
    letter = new_letter(tenant)
    await dead_letters.record_exhausted(pool, exhausted(letter, at=START + timedelta(hours=1)))
    await dead_letters.put_accepted(pool, letter, replay(), yes(replay()))
    assert (await _run(pool, letter)).status is RunStatus.RUNNING
    await _finish(pool, letter, RunStatus.SUCCESS)
    run = await _run(pool, letter)
    assert (run.status, run.failed_step, run.category, run.started_at) == (RunStatus.SUCCESS, None, None, START)


async def test_runs_are_listed_by_filter_and_page(pool: Pool, tenant: str) -> None:
    """Newest first, each once."""
    statuses = [RunStatus.SUCCESS, RunStatus.FAILED, RunStatus.CANCELED]
    letters = [new_letter(tenant) for _ in range(30)]
    for number, letter in enumerate(letters):
        at = START + timedelta(minutes=number // 2)
        await _finish(pool, letter, statuses[number % 3], started_at=at, pipeline=f"p{number % 2}")

    async def ids(**filters: Any) -> list[str]:
        chosen, cursor, found = runs.RunFilter(tenant=tenant, **filters), None, list[str]()
        while True:
            page = await runs.list_runs(pool, chosen, 4, cursor)
            found += [run.run_id for run in page.rows]
            cursor = page.cursor
            if cursor is None:
                return found

    everything = await ids()
    assert sorted(everything) == sorted(letter.run_id for letter in letters)
    assert sorted(await ids(status=RunStatus.FAILED)) == sorted(letter.run_id for letter in letters[1::3])
    assert sorted(await ids(pipeline="p0")) == sorted(letter.run_id for letter in letters[::2])
    assert len(await ids(since=START + timedelta(minutes=10))) == 10
    assert len(await ids(until=START + timedelta(minutes=10))) == 20
    everywhere = await runs.list_runs(pool, runs.RunFilter(pipeline="p0", since=START), 1000)
    assert {letter.run_id for letter in letters[::2]} <= {run.run_id for run in everywhere.rows}


async def test_a_dead_letter_is_found_by_a_beginning_that_no_other_has(pool: Pool) -> None:
    """By its id, its run and step, or what one has typed of these; not by another tenant, nor by what several have."""
    tenant, other = new_tenant(), new_tenant()
    letter = new_letter(tenant, "charge")
    twin = LetterId(tenant=tenant, run_id=letter.run_id, step="ship")
    for each in (letter, twin):
        await dead_letters.record_exhausted(pool, exhausted(each))
    number = letter.run_id.removeprefix("run-")
    named = (letter.workflow_id, f"{letter.run_id}/charge", f"{number[:12]}/charge", f"{letter.workflow_id[:-2]}")
    for text in named:
        assert (await find_letter(pool, tenant, text)).id == letter.workflow_id, text
        assert (await find_letter(pool, None, text)).id == letter.workflow_id, text
        with pytest.raises(LetterNotFound, match="no dead letter of yours has the id"):
            await find_letter(pool, other, text)
    with pytest.raises(InvalidInput, match=r"2 ids begin with it, such as .*charge, .*ship"):
        await find_letter(pool, tenant, number[:12])
    for vague in ("", "dead", "dead-letter-run-", number[:3], "%", "run-%/charge"):
        with pytest.raises(LetterNotFound):
            await find_letter(pool, tenant, vague)


async def test_open_ones_are_listed_alone(pool: Pool) -> None:
    """Pending and replaying ones, whatever else the filter says."""
    tenant = new_tenant()
    await _fill(pool, tenant, 36)
    page = await list_letters(pool, LetterFilter(tenant=tenant, open=True), 100)
    every = await list_letters(pool, LetterFilter(tenant=tenant), 100)
    assert [row.id for row in page.rows] == [row.id for row in every.rows if not row.status.closed]
    assert {row.status for row in page.rows} == {LetterStatus.PENDING, LetterStatus.REPLAYING}
