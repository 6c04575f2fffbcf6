"""A worker's slots: most are for all, some for tenants with hardly any step running, and never too many are held."""

import asyncio
import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.exceptions import ApplicationError
from temporalio.worker import SlotReleaseContext, SlotReserveContext

from redrive.activities.step_slots import StepSlots
from redrive.categories import Category
from redrive.contracts import Attempt
from redrive.fairness import CROWDED_OUT, is_welcome, overflow_queue, slots_to_reserve

QUEUE = "redrive"
ASKING = cast("SlotReserveContext", None)


@dataclass
class _Held:
    """Attempts that hold slots, each until it is let go."""

    slots: StepSlots

    def __post_init__(self) -> None:
        self.held: list[contextlib.ExitStack] = []

    def take(self, tenant: str, queue: str = QUEUE, *, is_local: bool = False) -> bool:
        """Tell whether an attempt got a slot."""
        stack = contextlib.ExitStack()
        try:
            stack.enter_context(self.slots.held(tenant, queue, [], is_local=is_local))
        except ApplicationError:
            return False
        self.held.append(stack)
        return True


@pytest.mark.parametrize(
    ("steps", "wanted", "reserved"), [(1, None, 0), (2, None, 1), (4, None, 1), (100, None, 20), (10, 0, 0), (3, 9, 2)]
)
def test_one_slot_in_five_is_reserved(steps: int, wanted: int | None, reserved: int) -> None:
    """There is always a common one; a setting wins."""
    assert slots_to_reserve(steps, wanted) == reserved


@given(st.integers(2, 30), st.integers(1, 10), st.lists(st.sampled_from("abcdef"), max_size=60))
def test_never_more_than_the_slots_and_always_one_for_the_next_tenant(
    steps: int, wanted: int, tenants: list[str]
) -> None:
    """Whoever comes in whichever order, the limit holds; one tenant alone leaves a slot for another."""
    held = _Held(StepSlots(steps, slots_to_reserve(steps, wanted)))
    for tenant in tenants:
        held.take(tenant)
    assert len(held.held) <= steps
    if len(set(tenants)) < 2:
        assert held.take("another")


def test_reserved_slots_are_for_several_tenants() -> None:
    """One that has some of them already takes no more, so that the next finds one."""
    held = _Held(StepSlots(100, 20))
    assert [held.take("noisy") for _ in range(100)].count(True) == 80
    assert [held.take("second") for _ in range(20)].count(True) == 5
    assert held.take("third")
    assert (is_welcome(4, 20), is_welcome(5, 20)) == (True, False)


def test_whoever_finds_no_slot_is_sent_on_with_their_attempts() -> None:
    """The error is no failed attempt: it is not tried again here, and carries those before it."""
    held = _Held(StepSlots(2, 1))
    assert held.take("noisy")
    before = Attempt(attempt=1, at=datetime.now(UTC), category=Category.NETWORK, error_type="E", error="e")
    with pytest.raises(ApplicationError) as refused, held.slots.held("noisy", QUEUE, [before]):
        pass
    assert (refused.value.type, refused.value.non_retryable) == (CROWDED_OUT, True)
    assert refused.value.details[0][0]["attempt"] == 1


def test_without_reserved_slots_everybody_is_taken() -> None:
    """Temporal's own limit is the only one then."""
    held = _Held(StepSlots(2, 0))
    assert all(held.take("noisy") for _ in range(5))


async def test_the_overflow_queue_is_asked_while_a_common_slot_is_free() -> None:
    """One question at a time; its slot is taken from then on, and free again when it was not used."""
    held = _Held(StepSlots(3, 1))
    overflow = held.slots.overflow
    permit = await overflow.reserve_slot(ASKING)
    second = asyncio.create_task(overflow.reserve_slot(ASKING))
    await _turns()
    assert not second.done()
    assert held.take("noisy")
    assert held.take("quiet")
    assert not held.take("noisy")
    overflow.release_slot(SlotReleaseContext(slot_info=None, permit=permit))
    await _turns()
    assert second.done()


async def test_a_step_from_the_overflow_queue_counts_for_its_tenant() -> None:
    """It runs in a common slot, and another one is asked for when a common slot is free again."""
    held = _Held(StepSlots(3, 1))
    overflow = held.slots.overflow
    permit = await overflow.reserve_slot(ASKING)
    overflow.mark_slot_used(cast("Any", None))
    assert held.take("noisy", overflow_queue(QUEUE))
    assert held.take("noisy")
    waiting = asyncio.create_task(overflow.reserve_slot(ASKING))
    await _turns()
    assert not waiting.done()
    assert not held.take("noisy")
    held.held[0].close()
    overflow.release_slot(SlotReleaseContext(slot_info=cast("Any", "a step"), permit=permit))
    await _turns()
    assert waiting.done()


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_fast_attempts_never_hold_more_than_all_slots(steps: int) -> None:
    """Temporal does not bound them as it bounds activities: whoever they belong to, the worker's limit holds."""
    held = _Held(StepSlots(steps, slots_to_reserve(steps, None)))
    taken = [held.take(f"tenant-{number}", is_local=True) for number in range(2 * steps)]
    assert taken == [True] * steps + [False] * steps
