"""One filter, one meaning: a list, the plan of a bulk operation and its membership are about the same dead letters."""

import hashlib
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from redrive.bulk import BulkCommand, BulkPlan, BulkStart
from redrive.categories import Category
from redrive.dead_letters import LetterFilter, LetterSelection, LetterStatus, Verb
from redrive.keys import new_request_id
from redrive.postgres.tenancy import Pool, transaction
from redrive.store.bulk.operations import find_members, open_bulk
from redrive.store.dead_letters import records as dead_letters
from redrive.store.dead_letters.lists import list_letters
from redrive.store.dead_letters.models import LetterRow
from tests.integration.store.letters import START, discard, exhausted, new_letter, new_tenant, replay, yes

STEPS = ["charge", "ship", "100%_sure\\"]
MESSAGES = ["the provider is down", "CHARGE refused", "100%_sure\\", "key-1 is taken"]
WORDS = [*STEPS, *MESSAGES, "Charge", "key-1", "key-", "trace-2", "dead-letter", "run-", "%", "_", "", "\0", "İ"]
TEXTS = st.none() | st.sampled_from(WORDS) | st.text(max_size=3)
FILTERS = st.fixed_dictionaries(
    {"text": TEXTS},
    optional={
        "step": st.sampled_from(STEPS),
        "pipeline": st.sampled_from(["orders", "returns"]),
        "category": st.sampled_from([Category.TIMEOUT, Category.VALIDATION]),
        "since": st.just(START + timedelta(minutes=4)),
        "until": st.just(START + timedelta(minutes=20)),
    },
)


@pytest.fixture(scope="module")
async def filled(pool: Pool) -> str:
    """A tenant with dead letters of three steps. One in four is not pending; `key-1` and others begin alike."""
    tenant = new_tenant()
    for number in range(24):
        letter = new_letter(tenant, STEPS[number % 3])
        message = exhausted(
            letter,
            message=MESSAGES[number % 4],
            category=[Category.TIMEOUT, Category.VALIDATION][number // 2 % 2],
            pipeline=["orders", "returns"][number // 4 % 2],
            at=START + timedelta(minutes=number),
            key=f"key-{number}" if number % 5 else None,
            correlation_id=f"trace-{number}",
        )
        await dead_letters.record_exhausted(pool, message)
        # The dead letter with the key `key-1` is closed.
        if number % 4 == 1:
            command = discard() if number % 8 == 1 else replay()
            await dead_letters.put_accepted(pool, letter, command, yes(command))
    return tenant


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FILTERS)
@example({"text": "charge"})
@example({"text": "key-1"})
@example({"text": "trace-2"})
async def test_a_bulk_operation_is_about_the_open_letters_of_the_list(
    pool: Pool, filled: str, fields: dict[str, Any]
) -> None:
    """Of whatever is in the list with the same filter, the pending ones: no others, and none is left out."""
    pending = await _listed(pool, LetterFilter(tenant=filled, status=LetterStatus.PENDING, **fields))
    listed = await _listed(pool, LetterFilter(tenant=filled, **fields))
    command = BulkCommand(tenant=filled, verb=Verb.REPLAY, selection=LetterSelection(**fields))
    assert await _frozen(pool, command) == _ids(pending)
    assert _ids(pending) == _ids([row for row in listed if row.status is LetterStatus.PENDING])
    plan = await find_members(pool, command)
    assert (plan.count, plan.digest) == (len(pending), _digest(pending))


async def _listed(pool: Pool, chosen: LetterFilter) -> list[LetterRow]:
    page = await list_letters(pool, chosen, 100)
    assert page.cursor is None
    return page.rows


def _ids(rows: list[LetterRow]) -> set[str]:
    return {row.id for row in rows}


def _digest(rows: list[LetterRow]) -> str:
    return hashlib.sha256(",".join(sorted(f"{row.id}:{row.version}" for row in rows)).encode()).hexdigest()


async def _frozen(pool: Pool, command: BulkCommand) -> set[str]:
    """Start a bulk operation and return its membership."""
    start = BulkStart(
        request_id=new_request_id(), command=command, plan_hash="looked at", requested_by="ada", reason="a test"
    )
    plan = BulkPlan(hash=start.plan_hash, command=command, count=0, groups=[])
    await open_bulk(pool, start, lambda _members: plan, approvals=False)
    async with transaction(pool, command.tenant) as connection:
        rows = await connection.fetch("SELECT letter_id FROM bulk_items WHERE bulk_id = $1", start.bulk_id)
    return {row["letter_id"] for row in rows}
