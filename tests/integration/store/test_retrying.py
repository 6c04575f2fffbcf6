"""The list of retries in flight: what a late word cannot do to it, its pages, and what is forgotten."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redrive.errors import InvalidInput
from redrive.postgres.tenancy import Pool, reading
from redrive.store.dead_letters.figures import backlog
from redrive.store.runs import (
    RetryingFilter,
    RetryingStep,
    clear_retrying,
    count_retrying,
    delete_unheard,
    list_retrying,
    put_retrying,
)
from tests.integration.store.letters import new_tenant
from tests.integration.store.retrying import new_retrying

KEPT = timedelta(minutes=1)
WORDS = st.tuples(st.integers(1, 3), st.integers(1, 4))


async def listed(pool: Pool, tenant: str | None) -> list[RetryingStep]:
    """Return the first page."""
    return (await list_retrying(pool, RetryingFilter(tenant=tenant))).rows


async def clear(pool: Pool, step: RetryingStep, cycle: int, attempt: int) -> None:
    """Say that this attempt has ended the step."""
    await clear_retrying(pool, tenant=step.tenant, run_id=step.run_id, step=step.step, cycle=cycle, attempt=attempt)


async def test_a_step_is_listed_until_an_attempt_ends_it(pool: Pool, tenant: str) -> None:
    """Each failed attempt takes the place of the one before; what ends the step takes it off the list."""
    first, second = new_retrying(tenant), new_retrying(tenant, attempt=2, error="still 503")
    for step in (first, second):
        await put_retrying(pool, step, KEPT)
        assert await listed(pool, tenant) == [step]
    await clear(pool, first, 1, 3)
    assert await listed(pool, tenant) == []


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(WORDS, min_size=1, max_size=6))
async def test_a_late_word_of_an_older_attempt_changes_nothing(pool: Pool, words: list[tuple[int, int]]) -> None:
    """In whatever order attempts are heard, the newest is listed; one that is not newer does not take it off."""
    tenant = new_tenant()
    for cycle, attempt in words:
        await put_retrying(pool, new_retrying(tenant, cycle=cycle, attempt=attempt), KEPT)
    newest = max(words)
    for cycle, attempt in words:
        await clear(pool, new_retrying(tenant), cycle, attempt)
    (row,) = await listed(pool, tenant)
    assert (row.cycle, row.attempt) == newest
    await clear(pool, row, newest[0] + 1, 1)
    assert await listed(pool, tenant) == []


async def test_pages_hold_every_step_once_those_due_first(pool: Pool, tenant: str) -> None:
    """Also when several are due at the same moment; a cursor of another list is refused."""
    now = datetime.now(UTC)
    due = [now + timedelta(seconds=second) for second in (30, 10, 10, 10, 20)]
    for number, at in enumerate(due):
        await put_retrying(pool, new_retrying(tenant, run_id=f"run-{number} {tenant}", next_at=at), KEPT)
    chosen, rows, cursor = RetryingFilter(tenant=tenant), [], None
    for _ in range(3):
        page = await list_retrying(pool, chosen, 2, cursor)
        rows += page.rows
        cursor = page.cursor
    assert cursor is None
    assert [row.run_id.split()[0] for row in rows] == ["run-1", "run-2", "run-3", "run-4", "run-0"]
    first = await list_retrying(pool, chosen, 2)
    with pytest.raises(InvalidInput, match="other filters"):
        await list_retrying(pool, RetryingFilter(), 2, first.cursor)


async def test_what_nobody_heard_of_is_not_counted_and_then_deleted(pool: Pool, tenant: str) -> None:
    """Its run was canceled or terminated: after its time it is not shown, and the sweep deletes it, but no other."""
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    alive = new_retrying(tenant)
    await put_retrying(pool, new_retrying(tenant, run_id="run-gone", next_at=long_ago), KEPT)
    await put_retrying(pool, alive, KEPT)
    total = await count_retrying(pool, tenant)
    assert (total.count, total.exact) == (1, True)
    assert await listed(pool, tenant) == [alive]
    await delete_unheard(pool)
    async with reading(pool, tenant) as connection:
        assert await connection.fetchval("SELECT count(*) FROM retrying") == 1


async def test_each_tenant_sees_its_own(pool: Pool, tenant: str) -> None:
    """Two tenants with a step of the same name in a run of the same id; whoever reads all sees both."""
    other = new_tenant()
    for whose in (tenant, other):
        await put_retrying(pool, new_retrying(whose, run_id=f"run-of-{tenant}"), KEPT)
    assert [row.tenant for row in await listed(pool, other)] == [other]
    assert {tenant, other} <= {row.tenant for row in await listed(pool, None)}
    assert (await backlog(pool)).retrying >= 2
