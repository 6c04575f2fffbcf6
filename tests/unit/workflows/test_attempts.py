"""What a run carries along of its failed attempts."""

from datetime import UTC, datetime

from redrive import StepStatus
from redrive.categories import Category
from redrive.contracts import Attempt, StepState
from redrive.workflows.failures import drop_oldest_attempts

ENTRY = Attempt(
    attempt=1, at=datetime(2026, 1, 1, tzinfo=UTC), category=Category.NETWORK, error_type="OSError", error="x" * 100
)
SIZE = len(ENTRY.model_dump_json())


def step(name: str, tries: int, status: StepStatus = StepStatus.SUCCESS) -> StepState:
    """A step with so many failed tries."""
    return StepState(name=name, status=status, attempts=[ENTRY] * tries)


def test_what_fits_is_kept() -> None:
    """Within the budget nothing is forgotten."""
    steps = [step("a", 2), step("b", 0), step("c", 1)]
    drop_oldest_attempts(steps, budget=3 * SIZE)
    assert [len(each.attempts) for each in steps] == [2, 0, 1]


def test_the_earliest_steps_are_forgotten_first() -> None:
    """Past the budget, finished steps lose their attempts from the first on; the count of tries stays."""
    steps = [step("a", 2), step("b", 2), step("c", 2)]
    steps[0].attempt = 3
    drop_oldest_attempts(steps, budget=5 * SIZE)
    assert [len(each.attempts) for each in steps] == [0, 2, 2]
    assert steps[0].attempt == 3


def test_a_failed_step_keeps_its_attempts() -> None:
    """What tells why a run failed is not forgotten."""
    steps = [step("a", 2), step("b", 9, StepStatus.FAILED)]
    drop_oldest_attempts(steps, budget=2 * SIZE)
    assert [len(each.attempts) for each in steps] == [2, 9]
